"""Engines as their pods show them, and which ranks may move."""

from dataclasses import replace
from typing import Any

import pytest

from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.record import new_record
from kvtier.placement.domain import Domain
from kvtier.placement.topology import Engine
from kvtier.plan.observed import NodeFacts, Observed, RankState
from kvtier.plan.placement import engine_of, memory_bytes, moves, moving, placed
from kvtier.render.render import RenderSettings, render
from small_tier import spec

SINCE = "2026-01-01T00:00:00Z"
ZONE = "topology.kubernetes.io/zone"
NODES = {"a": NodeFacts(labels={ZONE: "z1"}), "b": NodeFacts(labels={ZONE: "z2"})}


def pod(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metadata": {"name": "vllm-0", "creationTimestamp": SINCE},
        "spec": {
            "nodeName": "a",
            "containers": [
                {"resources": {"requests": {"memory": "1Gi"}}},
                {"resources": {"requests": {"memory": "512Mi"}}},
                {},
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": SINCE}],
        },
    }
    for path, value in changes.items():
        part, name = path.split("_", 1)
        found[part][name] = value
    return found


def test_an_engine_is_its_node_since_when_it_is_ready_and_what_it_asks_for() -> None:
    assert engine_of(pod()) == Engine("vllm-0", "a", ready_since=SINCE, memory=3 * 2**29)


def test_a_pod_that_is_not_ready_is_an_engine_that_is_not() -> None:
    for conditions in ([], [{"type": "Ready", "status": "False"}]):
        found = engine_of(pod(status_conditions=conditions))
        assert found is not None
        assert not found.ready


@pytest.mark.parametrize(
    "changes",
    [
        {"spec_nodeName": None},
        {"status_phase": "Succeeded"},
        {"status_phase": "Failed"},
        {"metadata_deletionTimestamp": SINCE},
    ],
    ids=str,
)
def test_a_pod_without_a_node_or_with_an_end_is_no_engine(changes: dict[str, Any]) -> None:
    assert engine_of(pod(**changes)) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024Ki", 2**20), ("64Gi", 2**36), (5, 5), ("1e3", None), (None, None), ("", None)],
)
def test_memory_that_cannot_be_read_is_not_known(text: object, size: int | None) -> None:
    assert memory_bytes(text) == size


def test_what_an_engine_asks_for_in_words_of_its_own_counts_as_nothing() -> None:
    odd = pod(spec_containers=[{"resources": {"requests": {"memory": "1e9"}}}])
    found = engine_of(odd)
    assert found is not None
    assert found.memory == 0


def tier() -> KVCacheTier:
    metadata = {"namespace": "serving", "name": "demo", "uid": "u"}
    return parse_tier({"metadata": metadata, "spec": spec()})


def observed(*, seen: int = 1, keys: dict[int, int] | None = None) -> tuple[Observed, Any]:
    """A tier whose engines chose z1, as observed once the affinity has been applied."""
    made = tier()
    record = new_record(made.spec, operator_token="kvtt-0f0f0f0f", engine_token="kvtt-1e1e1e1e")
    chosen = Domain("zone", ZONE, "z1")
    record = replace(record, domain=chosen)
    intents = {
        (each["kind"], each["metadata"]["name"]): each
        for each in render(made, record, settings=RenderSettings())
    }
    live = {
        key: {
            **each,
            "metadata": {**each["metadata"], "generation": 1},
            "status": {"observedGeneration": seen},
        }
        for key, each in intents.items()
    }
    return (
        Observed(tier=made, record=record, children=live, nodes=NODES, keys=keys or {}),
        intents,
    )


def rank(number: int, node: str | None, **changes: Any) -> RankState:
    facts: dict[str, Any] = {"pod": f"demo-r{number}-0", "pod_uid": "p", "address": "10.0.0.1"}
    return RankState(rank=number, node=node, ready=True, **(facts | changes))


def moved(found: tuple[Observed, Any], *states: RankState) -> list[str]:
    going = moving(found[0], states)
    deletions, events = moves(found[0], states=going, intents=found[1])
    assert len(events) == bool(deletions)
    return [each.name for each in deletions]


def test_only_an_empty_rank_outside_whose_pod_is_older_than_the_choice_moves() -> None:
    found = observed(keys={0: 0, 1: 0})
    affinity = found[1]["StatefulSet", "demo-r0"]["spec"]["template"]["spec"]["affinity"]
    assert moved(found, rank(0, "a"), rank(1, "b")) == ["demo-r1-0"]
    assert moved(found, rank(1, "b", affinity=affinity)) == []
    assert moved(found, rank(1, "b", leaves_at=SINCE)) == []
    assert moved(found, rank(1, None, pod=None)) == []
    assert moved(observed(keys={1: 3}), rank(1, "b")) == []
    assert moved(observed(), rank(1, "b")) == [], "it did not say how many keys it has"
    assert moved(observed(), rank(1, "b", address=None)) == ["demo-r1-0"]


def test_none_moves_before_its_next_pod_would_be_made_by_the_new_template() -> None:
    early = observed(seen=0, keys={1: 0})
    assert moved(early, rank(1, "b")) == []
    assert [state.rank for state in moving(early[0], [rank(0, "a"), rank(1, "b")])] == [1]
    found, intents = observed(keys={1: 0})
    old = {key: each for key, each in found.children.items() if key != ("StatefulSet", "demo-r1")}
    gone = Observed(tier=found.tier, record=found.record, children=old, nodes=NODES, keys={1: 0})
    assert moved((gone, intents), rank(1, "b")) == []


def test_a_node_that_does_not_exist_is_outside_of_every_domain() -> None:
    found, _ = observed()
    nodes = {**NODES, "a": NodeFacts(exists=False, labels={ZONE: "z1"})}
    gone = Observed(tier=found.tier, record=found.record, nodes=nodes)
    assert placed(gone, [rank(0, "a")]).ranks_outside == [0]
    assert placed(found, [rank(0, "a")]).ranks_outside == []
