"""Small tiers for trials, each test with a place of its own for what trials make."""

import os
import sys
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[3]
sys.path[:0] = [str(CHECKOUT / "tests/unit" / folder) for folder in ("trial", "cli")]

from small_trial import SMALL  # noqa: E402


@pytest.fixture
def small_file(tmp_path: Path) -> Callable[..., Path]:
    def write(**spec: dict[str, Any]) -> Path:
        """The small tier with other fields in parts of its spec."""
        parts = {part: {**fields, **spec.get(part, {})} for part, fields in SMALL["spec"].items()}
        file = tmp_path / "tier.yaml"
        file.write_text(yaml.safe_dump({**SMALL, "spec": parts}))
        return file

    return write


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trials of this test put their directories; its name is in every process of theirs."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    # That of this process is no trial's, whichever test needs it first.
    resource_tracker.ensure_running()
    monkeypatch.setitem(os.environ, "TMPDIR", str(folder))
    return folder
