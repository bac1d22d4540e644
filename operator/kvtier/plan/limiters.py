"""Pure: what a limiter tells of itself, and what all of them together say of a tier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from kvtier.admission.storm import State
from kvtier.plan.admission import PLANNED, Enforcement, View

MOST_TIERS: Final = 10_000
SILENT_AFTER: Final = 3
"""Looks in a row without an answer after which a limiter counts as silent: one that starts again is
no news."""
_ORDER: Final = (State.OPEN, State.RECOVERING, State.STORM)

Rate = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=256)]


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)


class TierTold(_Told):
    """One tier, as one limiter has it. Rates are prompt tokens/s."""

    namespace: Text
    name: Text
    state: State
    cause: Text | None = None
    limit_tokens_per_second: Rate | None = None
    hit_low: Share | None = None
    hit_share: Share | None = None
    offered_tokens_per_second: Rate = 0.0

    @property
    def hits(self) -> float | None:
        """The share of prompt tokens that hit; what a limit counts with where that is not told."""
        return self.hit_low if self.hit_share is None else self.hit_share

    @property
    def knows_plan(self) -> bool:
        return self.state is State.STORM and self.cause == PLANNED


class _State(_Told):
    replica: Text = ""
    tiers: Annotated[list[TierTold], Field(max_length=MOST_TIERS)] = []


@dataclass(frozen=True, slots=True)
class Replica:
    """One limiter as last asked: ``tiers`` by namespace and name, None without an answer, of which
    ``trouble`` is why. ``failures`` are the looks in a row without one."""

    address: str
    tiers: Mapping[tuple[str, str], TierTold] | None = None
    trouble: str = ""
    failures: int = 0


def parse(address: str, text: str | bytes) -> Replica:
    """What a limiter at ``address`` answered to ``GET /state``. Raises nothing."""
    try:
        found = _State.model_validate_json(text)
    except ValidationError as error:
        # Its own text quotes what a stranger may have written.
        return Replica(address, trouble=f"no state of a limiter ({error.error_count()} faults)")
    return Replica(address, tiers={(each.namespace, each.name): each for each in found.tiers})


@dataclass(frozen=True, slots=True)
class Limiters:
    """All replicas at one look; ``told``: the operator knows where to look."""

    told: bool = False
    replicas: Sequence[Replica] = field(default_factory=tuple)

    def after(self, before: "Limiters") -> "Limiters":
        """This look, with how often each replica that is silent now has been before."""
        failed = {each.address: each.failures for each in before.replicas}
        return replace(
            self,
            replicas=tuple(
                each
                if each.tiers is not None
                else replace(each, failures=failed.get(each.address, 0) + 1)
                for each in self.replicas
            ),
        )

    def of(self, key: tuple[str, str]) -> list[TierTold]:
        """What each replica that knows the tier says of it."""
        return [each.tiers[key] for each in self.replicas if each.tiers and key in each.tiers]

    def without_plan(self, key: tuple[str, str]) -> tuple[str, ...]:
        """The replicas, with what they lack, that do not hold a planned storm of the tier yet."""
        found = []
        for each in self.replicas:
            if each.tiers is None:
                found.append(f"{each.address} does not answer ({each.trouble})")
            elif key not in each.tiers:
                found.append(f"{each.address} does not know the tier")
            elif not each.tiers[key].knows_plan:
                found.append(f"{each.address} has {each.tiers[key].state}")
        return tuple(found)

    def enforcement(self, key: tuple[str, str]) -> Enforcement:
        answered = [each for each in self.replicas if each.tiers is not None]
        known = len(self.of(key))
        silent = [each.address for each in self.replicas if each.failures >= SILENT_AFTER]
        return Enforcement(
            told=self.told,
            replicas=known,
            strangers=len(answered) - known,
            silent=tuple(sorted(silent)),
        )


def together(told: Sequence[TierTold]) -> View | None:
    """What limiters say of a tier, as one: the gravest state, all that comes in, the least limit.

    None without any. Each sees its own part of the requests and works the whole limit out.
    """
    if not told:
        return None
    gravest = max(told, key=lambda each: _ORDER.index(each.state))
    limits = [each.limit_tokens_per_second for each in told]
    return View(
        state=gravest.state,
        cause=gravest.cause if gravest.state is not State.OPEN else None,
        hit=min((hit for each in told if (hit := each.hits) is not None), default=None),
        offered=sum(each.offered_tokens_per_second for each in told),
        limit=min((limit for limit in limits if limit is not None), default=None),
    )
