"""What the lifecycle looks at: the spec's wishes, the pool's pods, and what the ranks prove."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtier.api.rollout import OnPoolDrift, Revocation
from kvtier.generation.identity import id_of
from kvtier.generation.pods.read import (
    Disagreement,
    PodIdentity,
    differences,
    disagreements,
    has_drifted,
)


@dataclass(frozen=True, slots=True)
class Policy:
    """The tier's ``spec.rollout``; ``drain_timeout`` is in seconds."""

    drain_timeout: float
    on_pool_drift: OnPoolDrift = OnPoolDrift.ALERT
    revocation: Revocation = Revocation.DRAINED
    credential_epoch: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the pool that has not ended; one that is being deleted may still write."""

    ready: bool
    identity: PodIdentity


@dataclass(frozen=True, slots=True)
class Fences:
    """What the ranks prove of the record, as it is in its Secret.

    ``gone`` are the ranks where no token that is fenced reaches a key, proven for this run of the
    server; ``delivered`` those that have loaded the record's ACL file besides. A rank that does not
    run is in both: it can start with nothing else. ``purged``: by generation, the ranks that hold
    no key of it any more. ``sessions``: by token, on all ranks; None while some rank has not said.
    """

    ranks: frozenset[int]
    gone: frozenset[int] = frozenset()
    delivered: frozenset[int] = frozenset()
    purged: Mapping[str, frozenset[int]] = field(default_factory=dict)
    sessions: Mapping[str, int] | None = None

    @property
    def hold(self) -> bool:
        """Whether no rank can give a fenced token a key, now or after a restart."""
        return self.ranks <= self.gone and self.ranks <= self.delivered

    def empty(self, generation: str) -> bool:
        return self.hold and self.ranks <= self.purged.get(generation, frozenset())

    def without_sessions(self, *tokens: str) -> bool:
        return self.sessions is not None and not any(map(self.sessions.get, tokens))


@dataclass(frozen=True, slots=True)
class Case:
    """One look at a tier.

    ``wanted`` is the identity that the spec names. ``offered`` are identities, by id, that pods
    without a Secret of the tier run and for which one can be made. ``elapsed`` is in monotonic
    seconds since the look before, ``clocks`` what it left of them. ``kept`` are generations whose
    Secret is still there. ``now`` is RFC 3339, for people.
    """

    wanted: Mapping[str, Any]
    policy: Policy
    pods: Mapping[str, Pod]
    fences: Fences
    elapsed: float
    now: str
    new_token: Callable[[], str]
    clocks: Mapping[str, float] = field(default_factory=dict)
    offered: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()

    @property
    def wanted_id(self) -> str:
        return id_of(self.wanted)

    def users(self, generation: str) -> dict[str, Pod]:
        """The pods that have the generation's Secret."""
        return {
            name: pod for name, pod in self.pods.items() if generation in pod.identity.generations
        }

    def ready_users(self, generation: str) -> int:
        return sum(pod.ready for pod in self.users(generation).values())

    def foreign(self, generation: str, identity: Mapping[str, Any] | None) -> str | None:
        """What speaks against the pods that use a generation, in words; None if nothing does.

        A pod that runs another identity; or pods that differ in what the identity leaves open, of
        which nobody can tell which is right.
        """
        users = self.users(generation)
        if identity is None:
            return None
        for name, pod in sorted(users.items()):
            found = differences(identity, pod.identity)
            if found:
                told = ", ".join(
                    f"{each.field} {each.runs!r} (the generation: {each.declared!r})"
                    for each in found
                )
                return f"pod {name} runs {told}"
        disagree = disagreements({name: pod.identity for name, pod in users.items()})
        return _in_words(disagree[0]) if disagree else None

    def drifted(self) -> dict[str, Pod]:
        """The pods that use no generation and run another identity than the spec's."""
        return {
            name: pod for name, pod in self.pods.items() if has_drifted(self.wanted, pod.identity)
        }


def _in_words(found: Disagreement) -> str:
    values = [f"{value!r} ({', '.join(sorted(pods)[:3])})" for value, pods in found.values.items()]
    return f"pods differ in {found.field}: {' and '.join(sorted(values)[:3])}"
