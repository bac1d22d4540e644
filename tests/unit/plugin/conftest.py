"""The plugin against real Valkey servers, with a stand-in where LMCache is not installed."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import lmcache_standin
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
lmcache_standin.install()

from plugin_kit import Driver, NewDriver, NewTier, Tier, running_tier  # noqa: E402


@pytest.fixture
def new_tier(tmp_path: Path) -> Iterator[NewTier]:
    """Ranks of their own, for tests that break them."""
    with ExitStack() as stack:
        yield lambda ranks=1: stack.enter_context(running_tier(tmp_path, ranks=ranks))


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    with running_tier(tmp_path_factory.mktemp("tier"), ranks=3) as started:
        yield started


@pytest.fixture
def new_driver() -> Iterator[NewDriver]:
    made: list[Driver] = []

    def make(tier: Tier, **given: object) -> Driver:
        made.append(Driver(tier.given(**given)))
        return made[-1]

    yield make
    for driver in made:
        driver.adapter.close()


@pytest.fixture
def driver(tier: Tier, new_driver: NewDriver) -> Driver:
    return new_driver(tier).connected()
