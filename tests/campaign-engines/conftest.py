"""What needs the real LMCache: an environment of its own, and a cluster for what needs ranks."""

from collections.abc import Iterator

import pytest
from lmcache_environment import CannotInstall, lmcache

from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier, bring_up, installed, tiers
from livecluster.installation import Installation

TEST_SECONDS = 1800
"""LMCache imports torch each time it starts: a minute or more on a busy machine."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test without what the session brings up."""
    for item in items:
        if "tests/campaign-engines/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command of LMCache. Never skipped: it is installed, or every test fails with why."""
    try:
        return lmcache()
    except CannotInstall as error:
        why = str(error)
    pytest.fail(why, pytrace=False)


@pytest.fixture(scope="session")
def live() -> Iterator[LiveCluster]:
    yield from bring_up(name="engines", offset=8, watched=False)


@pytest.fixture(scope="session")
def kvtier(live: LiveCluster) -> Iterator[Installation]:
    yield from installed(live, values={"resources.requests.cpu": "500m"})


@pytest.fixture
def new_tier(
    live: LiveCluster, kvtier: Installation, request: pytest.FixtureRequest
) -> Iterator[NewTier]:
    """Makes tiers in a namespace of the test's own."""
    with tiers(live, label=request.node.name.removeprefix("test_")) as new:
        yield new
