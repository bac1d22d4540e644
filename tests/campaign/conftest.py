"""One cluster for what takes longer than a test run may, with kvtier as users install it."""

from collections.abc import Iterator

import pytest

from livecluster.cluster import LiveCluster
from livecluster.fixtures import bring_up, installed, new_tier
from livecluster.installation import Installation

# A fixture that all suites on a cluster share.
__all__ = ["new_tier"]

LAST = "test_no_token_of_the_whole_campaign_is_anywhere_but_in_secrets"
TEST_SECONDS = 900
"""A test that needs longer marks itself with its own timeout."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test without the session's bring-up; what judges the campaign runs last."""
    for item in items:
        if "tests/campaign/" in item.path.as_posix() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
    items.sort(key=lambda item: item.name == LAST)


@pytest.fixture(scope="session")
def live() -> Iterator[LiveCluster]:
    yield from bring_up(name="campaign", offset=9)


@pytest.fixture(scope="session")
def kvtier(live: LiveCluster) -> Iterator[Installation]:
    """The release with the chart's own values, but for its share of a busy node's CPU.

    Here the ranks, their probes and the whole control plane share two cores with the controller.
    """
    yield from installed(live, values={"resources.requests.cpu": "500m"})
