"""An operator on fakes, with and without a tier."""

import pytest
from tier_harness import Operator, spec
from tls_tier import NAMES, TLS, put

from certificates import Ca, Pair
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


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture(scope="module")
def other_ca() -> Ca:
    return Ca("other")


@pytest.fixture(scope="module")
def first(ca: Ca) -> Pair:
    return ca.issue(*NAMES)


@pytest.fixture
async def served(operator: Operator, ca: Ca, first: Pair) -> Operator:
    """An operator whose tier serves TLS."""
    put(operator, first, ca.pem)
    operator.apply(spec(**TLS))
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True", operator.condition("Ready")
    return operator
