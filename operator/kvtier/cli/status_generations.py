"""The generations of a tier on its screen: who uses each, and what its next step waits for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.words import age, counted
from kvtier.cli.screen import GenerationRow
from kvtier.generation.entry import GenerationState
from kvtier.generation.identity import id_of, identity
from kvtier.generation.pods.read import differences, disagreements
from kvtier.plan.pool import PoolPod, offered
from kvtier.plan.probing import seconds_of
from kvtier.render.names import engine_secret_name

State = GenerationState
NAMES: Final = 3
"""So many pods are named, the others counted."""
WITHOUT: Final = "no Secret"
_FIND_NOTHING: Final = {State.FENCED, State.CONTAMINATED, State.PURGED}


@dataclass(frozen=True, slots=True)
class Pool:
    """Pods with the tier's label that have not ended, by name; None, and a sentence that says why,
    where they may not be read."""

    pods: tuple[PoolPod, ...] | None
    hint: str = ""

    def users(self, generation: str) -> list[PoolPod]:
        return [pod for pod in self.pods or () if generation in pod.identity.generations]

    def without_secret(self) -> list[PoolPod]:
        return [pod for pod in self.pods or () if not pod.identity.generations]


def rows(body: Mapping[str, Any], *, pool: Pool, now: datetime) -> Iterator[GenerationRow]:
    """Oldest first, then the pods that have no Secret of the tier."""
    wanted = _wanted(body)
    status = body.get("status") or {}
    known = status.get("generations", ())
    current = next(
        (
            each["id"]
            for each in known
            if engine_secret_name(body["metadata"]["name"], each["id"])
            == status.get("engineSecret")
        ),
        "",
    )
    for each in known:
        users = pool.users(each["id"])
        notes = [*_which(users), *filter(None, [each.get("message")])]
        if pool.pods is not None:
            notes += _notes(each, pool, current=current, wanted=wanted)
        since = seconds_of(each.get("since"))
        yield GenerationRow(
            id=each["id"],
            state=each["state"],
            cause=each.get("cause"),
            age=age(now.timestamp() - since) if since else None,
            ready=_ready(pool, users),
            notes=notes,
        )
    if left := pool.without_secret():
        told = _differing(left, wanted) if wanted else ""
        yield GenerationRow(
            id=WITHOUT,
            state=None,
            cause=None,
            age=None,
            ready=_ready(pool, left),
            notes=[told or f"{_named([pod.name for pod in left])}."],
        )


def document(body: Mapping[str, Any], pool: Pool) -> list[dict[str, Any]] | None:
    """The pods for programs; null where they may not be read. ``differs`` is from the spec."""
    if pool.pods is None:
        return None
    wanted = _wanted(body)
    return [
        {
            "name": pod.name,
            "ready": pod.ready,
            "generations": sorted(pod.identity.generations),
            "differs": [
                {"field": each.field, "runs": each.runs, "declared": each.declared}
                for each in (differences(wanted, pod.identity) if wanted else ())
            ],
            "unreadable": dict(sorted(pod.identity.unreadable.items())),
        }
        for pod in pool.pods
    ]


def _wanted(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The identity that the spec names; None for a spec that this release does not take."""
    try:
        return identity(KVCacheTier.model_validate(body).spec)
    except ValueError:
        return None


def _ready(pool: Pool, pods: Sequence[PoolPod]) -> str | None:
    if pool.pods is None:
        return None
    return f"{sum(pod.ready for pod in pods)} of {len(pods)}" if pods else "none"


def _which(pods: Sequence[PoolPod]) -> list[str]:
    return [f"Used by {_named([pod.name for pod in pods])}."] if pods else []


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _notes(
    row: Mapping[str, Any], pool: Pool, *, current: str, wanted: Mapping[str, Any] | None
) -> Iterator[str]:
    """What the pods tell of a generation, beside what the operator wrote."""
    users, state = pool.users(row["id"]), row["state"]
    if state == State.DRAINING and current:
        ready = sum(pod.ready for pod in pool.users(current))
        if ready:
            yield f"{counted(ready, 'Ready pod')} on {current}: the clock runs."
        else:
            yield f"No Ready pod mounts the Secret of {current}: the clock stands still."
    if state == State.PENDING and wanted is not None:
        runs = [pod.name for pod in pool.without_secret() if row["id"] in offered(wanted, [pod])]
        if runs:
            yield f"Run without its Secret by {_named(runs)}."
    if state in _FIND_NOTHING and users:
        verb = "mounts" if len(users) == 1 else "mount"
        yield f"{counted(len(users), 'pod')} still {verb} its Secret, and every look-up is a miss."
    if wanted is not None and row["id"] == id_of(wanted) and (told := _differing(users, wanted)):
        yield told
        return
    for each in disagreements({pod.name: pod.identity for pod in users})[:1]:
        values = [f"{value} ({_named(names)})" for value, names in each.values.items()]
        yield f"Its pods differ in {each.field}: {' and '.join(values[:NAMES])}."


def _differing(pods: Sequence[PoolPod], wanted: Mapping[str, Any]) -> str:
    """Which pods do not run what the spec names, and in what; empty if none is known to."""
    found = [
        f"{pod.name}: {', '.join(map(str, different))}"
        for pod in pods
        if (different := differences(wanted, pod.identity))
    ]
    more = f"; and {len(found) - NAMES} more" if len(found) > NAMES else ""
    return f"Not what the spec names: {'; '.join(found[:NAMES])}{more}." if found else ""
