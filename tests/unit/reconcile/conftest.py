"""An operator on fakes, with and without a tier."""

import pytest
from pool_harness import NODES, add_engine, add_node, leaves, placed_spec
from tier_harness import Operator, spec
from tls_tier import NAMES, TLS, put

from certificates import Ca, Pair
from kvtier.cluster.protocol import NODE
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


@pytest.fixture
def fleet(operator: Operator) -> Operator:
    for name, leaf in NODES.items():
        add_node(operator, name, leaf)
    return operator


@pytest.fixture
async def unpinned(fleet: Operator) -> Operator:
    """A Ready tier before any engine: a rank in each leaf."""
    fleet.cluster.edit(NODE, "", "n2", {"spec": {"unschedulable": True}})
    fleet.apply(placed_spec())
    await fleet.settle()
    fleet.cluster.edit(NODE, "", "n2", {"spec": {"unschedulable": None}})
    await fleet.settle()
    assert leaves(fleet) == {"leaf-a", "leaf-b"}
    return fleet


@pytest.fixture
async def serving(operator: Operator) -> Operator:
    """A Ready tier beside two engines on two nodes, whose first probe still runs."""
    operator.links = {"n1": None, "n2": None}
    for name in ("n1", "n2"):
        add_node(operator, name, "leaf-a")
    add_engine(operator, "engine-0", "n1")
    add_engine(operator, "engine-1", "n2")
    operator.apply()
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True", operator.condition("Ready")
    return operator
