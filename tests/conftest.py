"""Makes the suites in this folder importable, and says what `--dist loadgroup` keeps together."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
# Hypothesis would fail an example that a busy machine takes 0.2 s for. What judges a change is
# the same each time; `make random` looks for examples that nobody has tried.
settings.register_profile("repeated", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("random" if os.environ.get("KVTIER_RANDOM") == "1" else "repeated")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process has the API server, and each file of tests/unit is in one."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        file = item.path.relative_to(TESTS)
        group = file.stem if file.parts[0] == "unit" else file.parts[0]
        item.add_marker(pytest.mark.xdist_group(group))
