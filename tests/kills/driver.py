"""The campaign: one scenario, struck at one call, must end as if nobody had struck."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from kills.outcome import Outcome, outcome
from kills.scenarios import SCENARIOS, prepared
from kills.world import Call, Strike, When, World
from kvtier.cluster.fake import Stopped
from kvtier.cluster.protocol import AlreadyExists, Conflict, TooManyRequests, Unavailable
from kvtier.store.protocol import StoreError, StoreUnreachable

SPARE_CALLS = 40
"""What a process needs to find that all is as it should be, and more than that."""


def stopped(call: Call) -> BaseException:
    del call
    return Stopped()


def refused(call: Call) -> BaseException | None:
    """500 of the API server; a Valkey that cannot be reached."""
    if call.to == "store":
        return StoreUnreachable("refused")
    return Unavailable(status=500, reason="InternalError", message="struck")


def busy(call: Call) -> BaseException | None:
    """429 with Retry-After; a Valkey that answers with an error."""
    if call.to == "store":
        return StoreError("LOADING Valkey is loading the dataset in memory")
    return TooManyRequests(status=429, reason="TooManyRequests", message="struck", retry_after=2.0)


def conflicting(call: Call) -> BaseException | None:
    """409 of a write: what another writer in between makes of it."""
    if not call.writes:
        return None
    error = AlreadyExists if call.verb in ("create", "post") else Conflict
    return error(status=409, reason=error.__name__, message="struck")


def lost(call: Call) -> BaseException | None:
    """It happened, and the answer was lost."""
    if call.to == "store":
        return StoreUnreachable("no answer in time")
    return Unavailable(status=0, reason="Timeout", message="struck")


@dataclass(frozen=True, slots=True)
class Blow:
    """What hits at one call. ``downtime``: before the next process starts, all others finish."""

    call: Call
    when: When
    error: Callable[[Call], BaseException | None]
    downtime: bool = False

    def strike(self, call: Call, when: When) -> BaseException | None:
        hit = (call.index, when) == (self.call.index, self.when)
        return self.error(call) if hit else None

    def later(self, calls: int) -> "Blow":
        """The same, so many calls later."""
        return replace(self, call=replace(self.call, index=self.call.index + calls))

    def __str__(self) -> str:
        return f"{self.error.__name__} {self.when} {self.call}"


def stops(call: Call) -> list[Blow]:
    """Both sides of a call.

    What is there after a call is there before the next one too. So that both kinds of next process
    see every state, the one that starts at once gets one side, the one that comes late the other.
    """
    return [Blow(call, "before", stopped), Blow(call, "after", stopped, downtime=True)]


def errors(call: Call) -> list[Blow]:
    """Every error that fits the call."""
    blows = [Blow(call, "before", error) for error in (refused, busy, conflicting)]
    blows.append(Blow(call, "after", lost))
    return [blow for blow in blows if blow.error(call) is not None]


class Campaign:
    """One scenario, its undisturbed run, and any number of disturbed ones."""

    def __init__(self, name: str, saved: bytes) -> None:
        self.name = name
        self.calls: list[Call] = []
        self._saved = saved
        self._expected: Outcome | None = None

    @classmethod
    async def of(cls, name: str) -> "Campaign":
        """With the undisturbed run, which tells the calls that there are to be struck."""
        campaign = cls(name, await prepared(name))
        campaign.calls, campaign._expected = await campaign._run()
        assert not campaign._expected.wrong, campaign._expected.wrong
        return campaign

    async def strike(self, *blows: Blow) -> str:
        """What one struck run has otherwise than the undisturbed one; empty if nothing."""
        assert self._expected is not None
        downtime = any(blow.downtime for blow in blows)
        try:
            calls, ended = await self._run(*(blow.strike for blow in blows), downtime=downtime)
        except AssertionError as error:
            return str(error)
        first = min(blow.call.index for blow in blows)
        if calls[: first + 1] != self.calls[: first + 1]:
            return "the run went another way before it was struck"
        most = (1 + len(blows)) * (len(self.calls) + SPARE_CALLS)
        if len(calls) > most:
            return f"{len(calls)} calls where {len(self.calls)} do"
        return ended.difference(self._expected)

    async def strike_each(self, runs: Iterable[tuple[Blow, ...]]) -> tuple[int, list[str]]:
        """How many runs there were, and what went wrong in which."""
        count, wrong = 0, []
        for blows in runs:
            count += 1
            found = await self.strike(*blows)
            if found:
                wrong.append(f"{self.name}, {' and '.join(map(str, blows))}: {found}")
        return count, wrong

    def pairs(self, count: int, lot: random.Random) -> Iterator[tuple[Blow, Blow]]:
        """Two stops each, by lot: the second hits the process that took over."""
        for _ in range(count):
            first = lot.choice(stops(lot.choice(self.calls)))
            yield first, first.later(lot.randrange(1, len(self.calls)))

    async def _run(self, *strikes: Strike, downtime: bool = False) -> tuple[list[Call], Outcome]:
        world = World.load(self._saved, downtime=downtime)
        # Until here nothing is struck: a process that runs has its memory.
        await world.settle()
        world.gate.calls.clear()
        world.gate.strikes = list(strikes)
        await SCENARIOS[self.name](world)
        return world.gate.calls, outcome(world)
