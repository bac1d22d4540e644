"""One cluster for all benches, with kvtier installed by its chart as it comes."""

from collections.abc import Iterator

import pytest

from livecluster.cluster import LiveCluster
from livecluster.fixtures import bring_up, installed
from livecluster.installation import Installation


@pytest.fixture(scope="session")
def live() -> Iterator[LiveCluster]:
    yield from bring_up(name="bench", offset=6, watched=False)


@pytest.fixture(scope="session")
def kvtier(live: LiveCluster) -> Iterator[Installation]:
    """The release with the chart's own values."""
    yield from installed(live, values={})
