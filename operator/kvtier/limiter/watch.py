"""Looks at every tier each second: collects what is known, runs its storm machine, says the limit.

It reads and never writes: an operator that is dead, an API server that is away and engines that
tell nothing each take something from what is known, and never the last limit that still holds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from kvtier.admission.capacity import LEAST_MISS, sizes_of
from kvtier.admission.rate import MOST_FACTOR
from kvtier.admission.signals import Signals, Sizes
from kvtier.admission.storm import Storm, advance, limit
from kvtier.limiter.known import Key, Known, TierFacts
from kvtier.limiter.login import GetSecret, Login
from kvtier.limiter.ranks import RankWatch
from kvtier.limiter.tier import TierView
from kvtier.limiter.tokens import PoolTokens, believed
from kvtier.reconcile.clock import Clock
from kvtier.store.protocol import Connect

log = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""Seconds from one look to the next; a rank that is lost or found again is looked at at once."""
FOUND_AT_ONCE: Final = 64
"""Ranks of all tiers to which sessions are being opened."""
OFFERED: Final = 5.0
"""Seconds for which what the server saw coming counts."""


@dataclass(slots=True)
class _Tier:
    """One tier's machine, and who brings its signals."""

    uid: str
    login: Login
    ranks: list[RankWatch]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    storm: Storm = field(default_factory=Storm)
    tokens: PoolTokens = field(default_factory=PoolTokens)
    offered: tuple[float, float] | None = None
    """Tokens/s, and when they were told (monotonic)."""
    answered_at: float | None = None
    """When all engines that were asked answered last (monotonic)."""
    view: TierView | None = None


class Watch:
    """Implements ``limiter.tier.Tiers``.

    ``pods_known_at`` gives until when the pods of a namespace are known (monotonic), None before
    they were first listed.
    """

    def __init__(
        self,
        known: Known,
        *,
        pods_known_at: Callable[[str], float | None],
        get_secret: GetSecret,
        connect: Connect,
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        self._known = known
        self._pods_known_at = pods_known_at
        self._get_secret = get_secret
        self._connect = connect
        self._clock = clock
        self._jitter = jitter
        self._tiers: dict[Key, _Tier] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(FOUND_AT_ONCE)

    def get(self, namespace: str, name: str) -> TierView | None:
        tier = self._tiers.get((namespace, name))
        return tier.view if tier else None

    def all(self) -> Iterable[TierView]:
        return [tier.view for tier in self._tiers.values() if tier.view is not None]

    def set_offered(self, namespace: str, name: str, tokens_per_second: float) -> None:
        tier = self._tiers.get((namespace, name))
        if tier is not None:
            tier.offered = (tokens_per_second, self._clock.monotonic())

    def tokens(self, key: Key) -> PoolTokens | None:
        """Where readings of a tier's engines go, None for a tier that is not known."""
        tier = self._tiers.get(key)
        return tier.tokens if tier else None

    def answered(self, key: Key) -> None:
        """All engines of a tier that were asked have answered: they are there."""
        tier = self._tiers.get(key)
        if tier is not None:
            tier.answered_at = self._clock.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        """Look after look until ``stop`` is set; then every session is closed."""
        try:
            began = self._clock.monotonic()
            while not stop.is_set():
                self.look()
                began = max(began + PERIOD, self._clock.monotonic() - PERIOD)
                await self._clock.wait(stop, max(0.0, began - self._clock.monotonic()))
        finally:
            for key in list(self._tiers):
                self._forget(key)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def look(self) -> None:
        """One look at every tier. What goes wrong with one is not another's."""
        self._known.lapse(now=self._clock.monotonic())
        for key in [key for key in self._tiers if key not in self._known.tiers]:
            self._forget(key)
        for key in list(self._known.tiers):
            self._guarded(key)

    def _guarded(self, key: Key) -> None:
        facts = self._known.tiers.get(key)
        if facts is None:
            return
        try:
            tier = self._tiers.get(key)
            if tier is None or tier.uid != facts.uid or len(tier.ranks) != facts.spec.pool.ranks:
                self._forget(key)
                tier = self._tiers[key] = self._begin(key, facts)
            tier.login.spec = facts.spec
            self._judge(key, facts, tier)
        except Exception:
            log.exception("%s/%s: no look", *key)

    def _judge(self, key: Key, facts: TierFacts, tier: _Tier) -> None:
        now = self._clock.monotonic()
        computed = tier.tokens.computed_rate()
        sizes = _sizes(facts, computed=computed, now=now)
        signals = self._signals(key, facts, tier, now=now)
        tier.storm = advance(tier.storm, now=now, signals=signals, sizes=sizes)
        # Told once: between two readings the gate knows better what has come and gone since.
        new = signals.counts_tokens and signals.tokens is not None
        waiting = tier.tokens.waiting if new else None
        tier.view = TierView(
            namespace=key[0],
            name=key[1],
            mode=facts.spec.admission.mode.value,
            storm=tier.storm,
            limit=limit(tier.storm, now=now, signals=signals, sizes=sizes),
            engines=signals.engines,
            computed_rate=computed,
            known_at=now,
            mean_prompt=sizes.mean_prompt,
            queued_seen=None if waiting is None else waiting * sizes.mean_prompt,
        )

    def _signals(self, key: Key, facts: TierFacts, tier: _Tier, *, now: float) -> Signals:
        engines_at = self._pods_known_at(key[0])
        engines = None if engines_at is None else len(self._known.engines(key))
        if engines_at is not None and tier.answered_at is not None:
            engines_at = max(engines_at, tier.answered_at)
        offered = tier.offered
        return Signals(
            ranks=tuple(found for rank in tier.ranks if (found := rank.signal()) is not None),
            engines=engines,
            engines_at=engines_at,
            tokens=tier.tokens.fresh(),
            counts_tokens=tier.tokens.tells(now=now),
            offered=offered[0] if offered is not None and now - offered[1] <= OFFERED else None,
            planned=facts.planned(self._clock.now()),
        )

    def _begin(self, key: Key, facts: TierFacts) -> _Tier:
        login = Login(*key, spec=facts.spec, get=self._get_secret, clock=self._clock)
        ranks = [
            RankWatch(
                rank,
                login=login,
                connect=self._connect,
                clock=self._clock,
                changed=lambda: self._guarded(key),
                turns=self._turns,
            )
            for rank in range(facts.spec.pool.ranks)
        ]
        tier = _Tier(uid=facts.uid, login=login, ranks=ranks)
        for rank in ranks:
            # Not all of them in one moment of each second.
            work = rank.run(tier.stop, delay=self._jitter())
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return tier

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a rank is not watched any more", exc_info=task.exception())

    def _forget(self, key: Key) -> None:
        tier = self._tiers.pop(key, None)
        if tier is not None:
            tier.stop.set()
            tier.login.close()


def _sizes(facts: TierFacts, *, computed: float | None, now: float) -> Sizes:
    """What the tier's engines can do, by its status while that counts, else by its spec."""
    rate = facts.engine_rate(now)
    if facts.sizes is None or facts.sizes[0] != rate:
        # Once for each change, since it takes a quarter of a millisecond.
        facts.sizes = rate, _declared(facts, rate)
    sizes = facts.sizes[1]
    return replace(sizes, engine_rate=believed(sizes.engine_rate, computed))


def _declared(facts: TierFacts, rate: float | None) -> Sizes:
    factor = facts.storm_factor
    hit_share = None if factor is None or factor < 1 else min(1 - 1 / factor, 1 - LEAST_MISS)
    sizes = sizes_of(facts.spec, hit_share=hit_share)
    return replace(
        sizes,
        engine_rate=_near(rate, sizes.engine_rate),
        mean_prompt=_near(facts.mean_prompt, sizes.mean_prompt),
    )


def _near(told: float | None, declared: float) -> float:
    """What the status tells, within ten times of what the spec does: whoever may write a status may
    be wrong, and a limit by a rate of nothing, or one that no prompt is long enough to end, is an
    outage."""
    if told is None:
        return declared
    return min(max(told, declared / MOST_FACTOR), declared * MOST_FACTOR)
