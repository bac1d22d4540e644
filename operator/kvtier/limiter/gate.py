"""One tier's gate in one replica: what passes now. In the path of every request."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvtier.limiter.bounds import Bounds, bounds_of
from kvtier.limiter.bucket import Bucket, Queue
from kvtier.limiter.report import TierReport
from kvtier.limiter.shares import MEAN_SECONDS, Meter, share
from kvtier.limiter.tier import TierView

ADMITTED: Final = "admitted"
SHED: Final = "shed"
WOULD_SHED: Final = "wouldShed"
RESULTS: Final = (ADMITTED, SHED, WOULD_SHED)
UNSEEN_SECONDS: Final = 2.0
"""What it takes to know that hits are gone: so long everything was let in, and what engines cannot
do of it waits in them when the limit begins."""
_LEAST_WAIT: Final = 0.001


@dataclass(slots=True)
class Passed:
    """Requests and prompt tokens of one result since the start, and ``rate``, tokens/s of late."""

    requests: int = 0
    tokens: float = 0.0
    rate: float = 0.0
    _looked: float = 0.0

    def look(self, *, seconds: float) -> None:
        """Take what came in ``seconds``, since the last look, into the rate."""
        if seconds > 0:
            rate = (self.tokens - self._looked) / seconds
            self.rate += (rate - self.rate) * -math.expm1(-seconds / MEAN_SECONDS)
            self._looked = self.tokens


class Gate:
    """``now`` is in seconds of the clock that views have. ``denied`` is called at the first denial
    of a demand that peers were not told of."""

    def __init__(
        self, *, namespace: str, name: str, now: float, denied: Callable[[], None]
    ) -> None:
        self.namespace, self.name = namespace, name
        self.view: TierView | None = None
        self.meter = Meter(now=now)
        self.passed = {result: Passed() for result in RESULTS}
        self.unsized = 0
        self.bounds = Bounds(enforces=False, mean_prompt=1.0, state="Open")
        self.bucket: Bucket | None = None
        self.queue = Queue(drain=1.0, now=now)
        self.told = True
        self._looked = now
        self._known_since = now
        self._others: Sequence[TierReport | None] = ()
        self._queued_elsewhere = 0.0
        self._denied = denied
        self._admitted, self._shed, self._would = (self.passed[result] for result in RESULTS)

    def decide(self, tokens: float, now: float) -> float:
        """0.0 to let a request of ``tokens`` pass, else the seconds after which one would."""
        self.meter.add(tokens)
        bucket = self.bucket
        if bucket is None or tokens <= 0:
            passed = self._admitted
        elif (wait := self._wait(bucket, now)) == 0.0:
            passed = self._admitted
            bucket.charge(tokens)
            self.queue.tokens += tokens
        else:
            if self.told and self.meter.rises(now):
                self.told = False
                self._denied()
            if self.bounds.enforces:
                self._shed.requests += 1
                self._shed.tokens += tokens
                return wait
            # The bucket goes on as if it were shed, so that this is what Enforce would do.
            passed = self._would
        passed.requests += 1
        passed.tokens += tokens
        return 0.0

    def _wait(self, bucket: Bucket, now: float) -> float:
        if not bucket.passes(now):
            return bucket.wait() or _LEAST_WAIT
        bounds = self.bounds
        if bounds.max_queued is None or bounds.limit is None:
            return 0.0
        above = self.queue.at(now) + self._queued_elsewhere - bounds.max_queued
        return above / bounds.limit if above > 0 else 0.0

    def renew(self, view: TierView | None, now: float) -> None:
        """The watcher has published a view, or the tier is gone."""
        self.view = view
        limited = self.bucket is not None
        self.settle(now)
        seen = view.queued_seen if view is not None else None
        # What was read when a limit begins is of before, or of the moment at which hits went.
        if limited and seen is not None and self.bucket is not None and self.bounds.limit:
            self.queue.correct(seen=seen * self.bucket.rate / self.bounds.limit, now=now)

    def hear(self, others: Sequence[TierReport | None], now: float) -> None:
        """What the other replicas say of this tier, an entry each; None where one says nothing."""
        self._others = others
        self._queued_elsewhere = sum(report.queued for report in others if report is not None)
        self.settle(now)

    def look(self, now: float) -> None:
        """Measure what came since the last look, and take the share for it."""
        self.meter.look(now)
        for passed in self.passed.values():
            passed.look(seconds=now - self._looked)
        self._looked = now
        self.settle(now)

    def settle(self, now: float) -> None:
        """Take the share that view, demand and peers ask for now."""
        reports = [report for report in self._others if report is not None]
        bounds = bounds_of(view=self.view, reports=reports, known_since=self._known_since, now=now)
        self.bounds = bounds
        if bounds.limit is None:
            self.bucket = None
            return
        rate = share(
            limit=bounds.limit,
            own=self.meter.demand,
            others=[report.demand if report is not None else 0.0 for report in self._others],
        )
        # A burst below the prompts that come would be lost while the bucket is full.
        prompt = max(bounds.mean_prompt, min(self.meter.typical, rate))
        if self.bucket is None:
            self.bucket = Bucket(rate=rate, prompt=prompt, now=now)
            unseen = max(0.0, self.meter.demand - rate) * UNSEEN_SECONDS
            self.queue = Queue(drain=rate, now=now, tokens=unseen)
        else:
            self.bucket.change(rate=rate, prompt=prompt, now=now)
            self.queue.change(drain=rate, now=now)

    def offered(self) -> float:
        """Tokens/s that come to all replicas, as last heard."""
        elsewhere = sum(report.offered for report in self._others if report is not None)
        return self.meter.offered + elsewhere

    def queued(self, now: float) -> float:
        """Tokens that wait by this replica's estimate, 0 without a limit."""
        return self.queue.at(now) if self.bucket is not None else 0.0

    def report(self, now: float) -> TierReport:
        """What peers are told: the own machine's limit, never an adopted one."""
        view, bounds = self.view, self.bounds
        own = view is not None and not bounds.adopted
        return TierReport(
            namespace=self.namespace,
            name=self.name,
            demand=self.meter.demand,
            offered=self.meter.offered,
            queued=self.queued(now),
            mode=view.mode if view is not None else "Observe",
            state=bounds.state if own else "Open",
            age=max(0.0, now - _since(view)) if view is not None and own else 0.0,
            mean_prompt=bounds.mean_prompt,
            limit=bounds.limit if own else None,
            max_queued=bounds.max_queued if own else None,
        )


def _since(view: TierView) -> float:
    since = view.storm.since
    return view.known_at if since is None else since
