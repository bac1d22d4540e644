"""Engines, ranks and nodes that move: the status follows, and ranks as far as nothing is lost.

With the chart's own resync: what is seen here, events have told.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from livecluster.api import condition
from livecluster.cluster import LiveCluster
from livecluster.faults import Faults
from livecluster.fixtures import NewTier
from livecluster.installation import Installation
from livecluster.probing import engine_on
from livecluster.tier import Tier
from livecluster.waiting import eventually, never

LEAF = "kvtier.dev/leaf"
LEAVES = {"node-1": "leaf-a", "node-2": "leaf-a", "node-3": "leaf-b"}
FOLLOWS = 30.0
"""10 s, and three times that on a busy machine."""
SILENT_SECONDS = 150.0
"""Until the node controller takes a silent node for one: 50 s by Kubernetes' default."""
CHUNKS = 8
DOMAINS = [{"name": "hostname", "key": "kubernetes.io/hostname"}, {"name": "leaf", "key": LEAF}]
WITHIN = {"placement": {"domains": DOMAINS, "links": [], "within": "leaf"}}


@pytest.fixture(scope="module", autouse=True)
def usual(kvtier: Installation) -> Iterator[Installation]:
    kvtier.install("--set=controller.resync=5m")
    kvtier.pod()
    yield kvtier
    kvtier.install()


@pytest.fixture
def tier(new_tier: NewTier) -> Tier:
    """Three ranks before any engine: one on each node."""
    tier = new_tier("chat")
    tier.apply({"pool": {"ranks": 3}, "model": {"layout": {"gqa": {"kvHeads": 3}}}, **WITHIN})
    tier.wait_ready()
    return tier


def nodes_of(tier: Tier) -> dict[int, str]:
    return {rank: pod["spec"].get("nodeName", "") for rank, pod in tier.pods().items()}


def shown_nodes(tier: Tier) -> set[str]:
    """As the status has it."""
    return {each.get("node", "") for each in tier.body()["status"]["rankStates"]}


def bring_to_leaf_a(tier: Tier) -> None:
    """By an engine there, while they hold nothing."""
    engine_on(tier, "node-1")
    eventually(
        lambda: {LEAVES.get(node) for node in nodes_of(tier).values()} == {"leaf-a"},
        seconds=FOLLOWS,
        what="all ranks are in leaf-a",
    )
    tier.wait_ready()


def said(tier: Tier) -> str:
    status = tier.body().get("status", {})
    return " ".join(f"{each['reason']}: {each['message']}" for each in status.get("findings", ()))


def follows(tier: Tier, text: str, *, gone: bool = False) -> float:
    """Seconds until the condition tells of it, or does not any more."""
    began = time.monotonic()
    eventually(
        lambda: (text not in said(tier)) if gone else (text in said(tier)),
        seconds=FOLLOWS,
        what=f"{text!r} {'is not' if gone else 'is'} told of",
        detail=lambda: said(tier),
    )
    return time.monotonic() - began


@contextmanager
def labelled(cluster: LiveCluster, node: str, leaf: str) -> Iterator[None]:
    cluster.kubectl("label", "node", node, f"{LEAF}={leaf}", "--overwrite")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", node, f"{LEAF}={LEAVES[node]}", "--overwrite")


@contextmanager
def cordoned(cluster: LiveCluster, node: str) -> Iterator[None]:
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


def test_ranks_that_hold_nothing_follow_the_first_ready_engine_to_its_leaf(tier: Tier) -> None:
    assert {LEAVES[node] for node in nodes_of(tier).values()} == {"leaf-a", "leaf-b"}
    stayed = {rank for rank, node in nodes_of(tier).items() if LEAVES[node] == "leaf-b"}
    before = tier.containers()
    engine_on(tier, "node-3")
    eventually(
        lambda: set(nodes_of(tier).values()) == {"node-3"},
        seconds=FOLLOWS,
        what="all ranks are in leaf-b",
        detail=lambda: nodes_of(tier),
    )
    tier.wait_ready()
    assert tier.body()["status"]["domain"] == "leaf=leaf-b"
    assert all(tier.containers()[rank] == before[rank] for rank in stayed)
    eventually(lambda: tier.events("DomainChosen"), seconds=10, what="an event DomainChosen")
    assert len(tier.events("MovingRanks")) == 1
    assert not tier.events("ProbeFailed"), "probed while ranks moved"


def test_ranks_that_hold_something_stay_and_go_there_at_their_next_start(tier: Tier) -> None:
    client = tier.engine()
    client.store(chunks=CHUNKS)
    before = tier.containers()
    engine_on(tier, "node-3")
    follows(tier, "RanksOutsideDomain")
    never(lambda: tier.containers() != before, seconds=5, what="a rank moved")
    assert client.hits(chunks=CHUNKS) == dict.fromkeys(range(3), CHUNKS)
    victim = next(rank for rank, node in nodes_of(tier).items() if node != "node-3")
    tier.kubectl("delete", "pod", f"{tier.name}-r{victim}-0")
    tier.wait_ready()
    assert nodes_of(tier)[victim] == "node-3"


@pytest.mark.timeout(240, func_only=True)
def test_a_pool_that_moves_or_ends_is_told_of_and_moves_nothing_that_holds_kv(tier: Tier) -> None:
    bring_to_leaf_a(tier)
    tier.engine().store(chunks=CHUNKS)
    before = tier.containers()
    engine_on(tier, "node-3", "other")
    follows(tier, "PoolSpansDomains: 1 of 2 engines are outside of leaf=leaf-a")
    tier.kubectl("delete", "pod", "engine", "--now")
    follows(tier, "PoolLeftDomain: None of the 1 engines is in leaf=leaf-a")
    tier.kubectl("delete", "pod", "other", "--now")
    follows(tier, "PoolLeftDomain", gone=True)
    assert tier.body()["status"]["domain"] == "leaf=leaf-a"
    assert tier.containers() == before


@pytest.mark.timeout(300, func_only=True)
def test_the_status_follows_a_node_that_is_relabelled_cordoned_and_drained(
    tier: Tier, live: LiveCluster
) -> None:
    bring_to_leaf_a(tier)
    # A rank that holds nothing would leave a node that leaves the domain.
    tier.engine().store(chunks=CHUNKS)
    before = tier.containers()
    held = [rank for rank, node in nodes_of(tier).items() if node == "node-2"]
    assert held, nodes_of(tier)
    with labelled(live, "node-2", "leaf-x"):
        took = follows(tier, "RanksOutsideDomain")
        shown = {each["rank"]: each["domain"] for each in tier.body()["status"]["rankStates"]}
        assert {shown[rank] for rank in held} == {"leaf=leaf-x"}
    follows(tier, "RanksOutsideDomain", gone=True)
    assert tier.containers() == before
    with cordoned(live, "node-2"):
        took = max(took, follows(tier, "RanksOnCordonedNodes: Cordoned: node-2"))
        assert tier.containers() == before
        live.kubectl(
            *("drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s"),
            *("--pod-selector", f"kvtier.dev/tier-name={tier.name}"),
        )
        eventually(
            lambda: "node-2" not in nodes_of(tier).values() and len(nodes_of(tier)) == 3,
            seconds=FOLLOWS,
            what="no rank is on node-2",
        )
        tier.wait_ready()
        eventually(
            lambda: "node-2" not in shown_nodes(tier),
            seconds=FOLLOWS,
            what="the status has no rank on node-2",
            detail=lambda: shown_nodes(tier),
        )
    follows(tier, "RanksOnCordonedNodes", gone=True)
    print(f"the status followed a node's change after {took:.1f} s at most")


@pytest.mark.timeout(600, func_only=True)
def test_the_status_follows_a_node_that_is_lost(
    tier: Tier, live: LiveCluster, usual: Installation
) -> None:
    mine = usual.pod()["spec"]["nodeName"]
    victim = next(rank for rank, node in nodes_of(tier).items() if node != mine)
    node = nodes_of(tier)[victim]
    faults = Faults(live)

    def is_silent() -> bool:
        return condition(live.api.get("nodes", "", node) or {}, "Ready").get("status") == "Unknown"

    try:
        with faults.frozen_node(node):
            eventually(is_silent, seconds=SILENT_SECONDS, what=f"{node} is silent")
            began = time.monotonic()
            eventually(
                lambda: (
                    f"node {node} has not reported since"
                    in tier.condition("StoreReady").get("message", "")
                ),
                seconds=FOLLOWS,
                what="the condition says so",
                detail=lambda: tier.condition("StoreReady"),
            )
            took = time.monotonic() - began
    finally:
        faults.mend()
    eventually(lambda: not is_silent(), seconds=SILENT_SECONDS, what=f"{node} is back")
    tier.wait_ready(seconds=180)
    print(f"the status followed a lost node's condition after {took:.1f} s")
