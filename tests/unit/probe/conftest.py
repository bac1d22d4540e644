"""Ranks on this machine with the users that kvtier gives them, as a probe finds them."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
sys.path[:0] = [str(CHECKOUT / "tests/unit" / folder) for folder in ("probe", "store", "cli")]

from probed_ranks import NewRanks, Ranks, new_ranks  # noqa: E402
from valkey_servers import BINARIES  # noqa: E402


@pytest.fixture(autouse=True)
def children_import_no_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a probe's ranks imports its parent's main module: here that would be pytest."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)


@pytest.fixture
def make_ranks(tmp_path: Path) -> Iterator[NewRanks]:
    with ExitStack() as stack:
        yield new_ranks(stack, tmp_path)


@pytest.fixture(params=[*BINARIES])
def ranks(request: pytest.FixtureRequest, make_ranks: NewRanks) -> Ranks:
    """Two ranks of either version."""
    return make_ranks(2, version=request.param)
