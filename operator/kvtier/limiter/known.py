"""What the API server has told of tiers and engines, and for how long it still counts.

Tiers that are gone and figures that are no longer told count for 15 minutes more: an operator that
is away, or a tier that is made anew, must not open the door.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from kvtier.admission.signals import Sizes
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.types import API_VERSION, KIND, KVCacheTierSpec
from kvtier.cluster.protocol import Object
from kvtier.placement.topology import Engine
from kvtier.plan.placement import engine_of
from kvtier.render.names import POOL_LABEL

log = logging.getLogger(__name__)

LAPSE: Final = 900.0
"""Seconds."""
MOST_TOLD: Final = 1e18
PLANNED: Final = "Planned"
STORM: Final = "Storm"

Key = tuple[str, str]
"""Namespace and name of a tier."""


@dataclass(slots=True)
class TierFacts:
    """One tier as last read.

    ``rate`` is R of one engine as the operator had it last [tokens/s] and ``untold_at`` when it was
    first found not to be told any more (monotonic). ``mean_prompt`` is tokens, ``storm_factor``
    1 / (1 - hits). ``planned_at`` is when a planned storm began, None without one. ``gone_at`` is
    when the tier was found deleted (monotonic).
    """

    uid: str
    spec: KVCacheTierSpec
    rate: float | None = None
    untold_at: float | None = None
    mean_prompt: float | None = None
    storm_factor: float | None = None
    planned_at: datetime | None = None
    gone_at: float | None = None
    sizes: tuple[float | None, Sizes] | None = None
    """What was made of all this, and the rate that it was made by."""

    def engine_rate(self, now: float) -> float | None:
        """R as the operator has it, or had it in the last 15 minutes."""
        told = self.untold_at is None or now - self.untold_at <= LAPSE
        return self.rate if told else None

    def planned(self, now: datetime) -> bool:
        """Whether a planned storm is announced. One of long ago is of an operator that is gone; one
        of the future is of another clock, and counts."""
        return self.planned_at is not None and now - self.planned_at <= timedelta(seconds=LAPSE)


@dataclass(slots=True)
class Known:
    """All tiers and engines. Times are monotonic."""

    tiers: dict[Key, TierFacts] = field(default_factory=dict)
    _pods: dict[Key, dict[str, Engine]] = field(default_factory=dict)
    _tier_of_pod: dict[Key, str] = field(default_factory=dict)

    def engines(self, key: Key) -> dict[str, Engine]:
        """The Ready engines of a tier by the names of their pods."""
        pods = self._pods.get(key, {})
        return {name: each for name, each in pods.items() if each.ready}

    def list_tiers(self, found: Iterable[Object], *, namespace: str, now: float) -> None:
        """All tiers of a namespace ("" for all of them)."""
        names = set()
        for tier in found:
            names.add(_key(tier))
            self.see_tier(tier, now=now)
        for key in self.tiers:
            if key not in names and namespace in ("", key[0]):
                self._gone(key, now=now)

    def see_tier(self, tier: Object, *, now: float) -> None:
        """One that was added or changed. A spec that is wrong leaves the last that was right."""
        key, uid = _key(tier), str(tier["metadata"].get("uid", ""))
        before = self.tiers.get(key)
        if before is not None and before.uid != uid:
            before = None
        spec = _spec(tier) or (before and before.spec)
        if not spec:
            return
        told = _admission(tier)
        rate, untold_at = _positive(told.get("engineTokensPerSecond")), None
        if rate is None and before is not None:
            rate = before.rate
            untold_at = now if before.untold_at is None else before.untold_at
        self.tiers[key] = TierFacts(
            uid=uid,
            spec=spec,
            rate=rate,
            untold_at=untold_at,
            mean_prompt=_positive(told.get("meanPromptTokens")),
            storm_factor=_positive(told.get("stormFactor")),
            planned_at=_planned_at(told),
        )

    def lose_tier(self, tier: Object, *, now: float) -> None:
        """One that was deleted."""
        self._gone(_key(tier), now=now)

    def lapse(self, *, now: float) -> None:
        """Forget tiers that were deleted 15 minutes ago."""
        for key, tier in list(self.tiers.items()):
            if tier.gone_at is not None and now - tier.gone_at > LAPSE:
                del self.tiers[key]

    def list_pods(self, found: Iterable[Object], *, namespace: str) -> None:
        """All pods of pools in a namespace ("" for all of them)."""
        pods = list(found)
        names = {_key(pod) for pod in pods}
        for key in list(self._tier_of_pod):
            if key not in names and namespace in ("", key[0]):
                self._drop_pod(key)
        for pod in pods:
            self.see_pod(pod)

    def see_pod(self, pod: Object) -> None:
        """One that was added or changed."""
        self._drop_pod(_key(pod))
        tier, engine = (pod["metadata"].get("labels") or {}).get(POOL_LABEL), engine_of(pod)
        if tier and engine is not None:
            namespace, name = _key(pod)
            self._tier_of_pod[namespace, name] = tier
            self._pods.setdefault((namespace, tier), {})[name] = engine

    def lose_pod(self, pod: Object) -> None:
        """One that was deleted."""
        self._drop_pod(_key(pod))

    def _gone(self, key: Key, *, now: float) -> None:
        tier = self.tiers.get(key)
        if tier is not None and tier.gone_at is None:
            tier.gone_at = now

    def _drop_pod(self, key: Key) -> None:
        tier = self._tier_of_pod.pop(key, None)
        if tier is None:
            return
        pods = self._pods[key[0], tier]
        pods.pop(key[1], None)
        if not pods:
            del self._pods[key[0], tier]


def _key(found: Object) -> Key:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _spec(tier: Object) -> KVCacheTierSpec | None:
    try:
        # Items of a list do not say what they are.
        return parse_tier({**tier, "apiVersion": API_VERSION, "kind": KIND}).spec
    except InvalidTier as error:
        log.debug("%s/%s: its spec is not right: %s", *_key(tier), error)
        return None


def _admission(tier: Object) -> Mapping[str, Any]:
    status = tier.get("status") or {}
    told = status.get("admission")
    return told if isinstance(told, dict) else {}


def _positive(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good and 0 < value < MOST_TOLD else None  # type: ignore[operator, arg-type]


def _planned_at(told: Mapping[str, Any]) -> datetime | None:
    if (told.get("state"), told.get("reason")) != (STORM, PLANNED):
        return None
    try:
        since = datetime.fromisoformat(str(told["since"]))
    except (KeyError, ValueError):
        return None
    return since if since.tzinfo else None
