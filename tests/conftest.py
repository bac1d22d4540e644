"""Makes the suites in this folder importable, and says what `--dist loadgroup` keeps together."""

from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
# Hypothesis would fail an example that a busy machine takes 0.2 s for.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process has the API server, and each file of tests/unit is in one."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        file = item.path.relative_to(TESTS)
        group = file.stem if file.parts[0] == "unit" else file.parts[0]
        item.add_marker(pytest.mark.xdist_group(group))
