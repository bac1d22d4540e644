"""An operator on fakes, with and without a tier."""

import pytest
from tier_harness import Operator

from kvtier.reconcile.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def operator(clock: FakeClock) -> Operator:
    return Operator(clock)


@pytest.fixture
async def ready(operator: Operator) -> Operator:
    """An operator with one tier that is Ready."""
    operator.apply()
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"
    return operator
