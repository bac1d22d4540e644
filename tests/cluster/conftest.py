"""One cluster for all tests of this folder, with kvtier installed by its chart."""

from collections.abc import Iterator

import pytest

from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier, bring_up, installed, new_tier, tiers
from livecluster.installation import RESYNC, Installation

# A fixture that all suites on a cluster share.
__all__ = ["new_tier"]

TEST_SECONDS = 120
LAST = (
    "test_the_charts_roles_were_enough_for_the_whole_session",
    "test_no_token_of_the_whole_session_is_anywhere_but_in_secrets",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test without the session's bring-up; what judges the session runs last."""
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
    items.sort(key=lambda item: LAST.index(item.name) if item.name in LAST else -1)


@pytest.fixture(scope="session")
def live() -> Iterator[LiveCluster]:
    yield from bring_up(name="test", offset=5)


@pytest.fixture(scope="session")
def kvtier(live: LiveCluster) -> Iterator[Installation]:
    """The release, with a resync of seconds; everything else is the chart's default."""
    yield from installed(live, values={"controller.resync": f"{RESYNC:g}s"})


@pytest.fixture(scope="module")
def module_tiers(
    live: LiveCluster, kvtier: Installation, request: pytest.FixtureRequest
) -> Iterator[NewTier]:
    """Makes tiers in a namespace that the tests of a module share."""
    label = request.path.stem.removeprefix("test_cluster_")
    with tiers(live, label=label) as new:
        yield new
