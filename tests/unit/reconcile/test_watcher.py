"""What an event becomes."""

from typing import Any

import kopf
import pytest

from kvtier.api.types import API_VERSION, KIND
from kvtier.controller import DEBOUNCE, Watcher, owner_key, registry, settings
from kvtier.reconcile.memory import Key, Memory

KEY = ("serving", "demo")


class Queue:
    def __init__(self) -> None:
        self.added: list[tuple[Key, frozenset[str], float]] = []

    def add(self, key: Key, *, dirty: frozenset[str] = frozenset(), delay: float = 0.0) -> None:
        self.added.append((key, dirty, delay))


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def watcher(queue: Queue, memory: Memory) -> Watcher:
    return Watcher(queue=queue, memory=memory)  # type: ignore[arg-type]


def tier_event(kind: str | None, *, generation: int = 1, **metadata: Any) -> dict[str, Any]:
    names = {"namespace": KEY[0], "name": KEY[1], "uid": "u1", "generation": generation}
    return {"type": kind, "object": {"kind": KIND, "metadata": {**names, **metadata}}}


def child_event(kind: str | None, *, version: str = "7") -> dict[str, Any]:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "demo", "controller": True}
    metadata = {
        "namespace": "serving",
        "name": "demo-r0",
        "resourceVersion": version,
        "ownerReferences": [owner],
    }
    return {"type": kind, "object": {"kind": "Service", "metadata": metadata}}


def test_a_changed_spec_is_enqueued_and_a_changed_status_is_not(
    watcher: Watcher, queue: Queue
) -> None:
    watcher.on_tier(tier_event("ADDED"))
    watcher.on_tier(tier_event("MODIFIED"))
    assert len(queue.added) == 1
    watcher.on_tier(tier_event("MODIFIED", generation=2))
    assert queue.added[1] == (KEY, frozenset({KIND}), 0.0)


def test_a_deletion_that_begins_and_one_that_ends_are_enqueued(
    watcher: Watcher, queue: Queue
) -> None:
    watcher.on_tier(tier_event("ADDED"))
    watcher.on_tier(tier_event("MODIFIED", deletionTimestamp="now"))
    watcher.on_tier(tier_event("DELETED", deletionTimestamp="now"))
    assert len(queue.added) == 3


def test_a_child_s_event_waits_for_its_like_and_a_deletion_does_not(
    watcher: Watcher, queue: Queue
) -> None:
    watcher.on_child(child_event("MODIFIED"))
    watcher.on_child(child_event("DELETED"))
    assert queue.added == [
        (KEY, frozenset({"Service"}), DEBOUNCE),
        (KEY, frozenset({"Service"}), 0.0),
    ]


def test_a_version_that_this_process_wrote_is_no_news(
    watcher: Watcher, queue: Queue, memory: Memory
) -> None:
    memory.of(KEY).put(child_event("ADDED")["object"])
    watcher.on_child(child_event("ADDED"))
    assert queue.added == []
    watcher.on_child(child_event("MODIFIED", version="8"))
    watcher.on_child(child_event("DELETED"))
    assert len(queue.added) == 2


def test_a_child_without_its_owner_reference_is_found_by_its_label() -> None:
    obj = child_event("MODIFIED")["object"]
    del obj["metadata"]["ownerReferences"]
    assert owner_key(obj) is None
    obj["metadata"]["labels"] = {"kvtier.dev/tier-name": "demo"}
    assert owner_key(obj) == KEY


def test_kopf_gets_no_handler_that_would_write_to_objects(watcher: Watcher) -> None:
    handlers = registry(watcher, cluster=None)  # type: ignore[arg-type]  # used at login only
    assert not list(handlers._changing.get_all_handlers())
    assert not list(handlers._spawning.get_all_handlers())
    assert len(list(handlers._watching.get_all_handlers())) == 6
    assert settings().persistence.finalizer != kopf.OperatorSettings().persistence.finalizer
    selectors = settings().watching.label_selectors
    assert selectors["", "v1", "pods"] == "kvtier.dev/tier", "or every pod of the cluster is read"
    assert settings().posting.enabled is False


def test_after_a_gap_every_tier_is_looked_at_for_what_went_in_it(memory, queue):
    watcher = Watcher(queue=queue, memory=memory, jitter=lambda: 0.5)  # type: ignore[arg-type]
    memory.of(("serving", "demo"))
    memory.of(("serving", "other"))
    watcher.on_relist("Service")
    assert queue.added == [
        (("serving", "demo"), frozenset({"Service"}), 0.02),
        (("serving", "other"), frozenset({"Service"}), 0.02),
    ]


def test_after_a_gap_a_thousand_tiers_are_spread_over_five_seconds(memory, queue):
    watcher = Watcher(queue=queue, memory=memory, jitter=lambda: 1.0)  # type: ignore[arg-type]
    for number in range(1000):
        memory.of(("serving", str(number)))
    watcher.on_relist("Service")
    assert {delay for _, _, delay in queue.added} == {5.0}
