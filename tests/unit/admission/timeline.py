"""Plays the storm machine through a timeline: signals that stay until they change, a look a second.

The loop is closed as Enforce closes it: engines get what was offered, up to the limit of the last
look, and prefill what does not hit, as fast as they can.
"""

from dataclasses import dataclass, field
from typing import Any

from kvtier.admission.signals import RankSignal, Signals, Sizes, TokenSignal
from kvtier.admission.storm import Limit, Storm, advance, limit

SIZES: dict[str, Any] = {
    "ranks": 2,
    "engine_rate": 5000.0,
    "utilization": 0.8,
    "mean_prompt": 8000.0,
    "target_ttft": 2.0,
    "floor": 0.1,
    "expected_hit": None,
}


@dataclass
class Rank:
    """One rank, as it answers. ``found`` is what a limiter finds at its first question."""

    answers: bool = True
    run: str = "first"
    keys: int = 10_000
    used: int = 10_000_000
    uptime: float | None = None
    at: float | None = None


@dataclass
class World:
    """What the machine is told until something changes. ``rate`` is what an engine really does,
    ``hangs`` the share of engines that take requests and do nothing with them."""

    hits: float = 0.9
    offered: float | None = 100_000.0
    engines: int | None = 4
    waiting: float | None = None
    counts: bool = True
    scraped: bool = True
    counted: bool = True
    rate: float | None = None
    busy: bool = False
    hangs: float = 0.0
    asked: bool = True
    planned: bool = False
    limited: bool = True
    ranks: dict[int, Rank] = field(default_factory=lambda: {0: Rank(), 1: Rank()})


class Timeline:
    def __init__(self, sizes: dict[str, Any] | None = None) -> None:
        self.sizes = Sizes(**(SIZES | (sizes or {})))
        self.world = World()
        self.now = 1000.0
        self.engines_at = self.now
        self.asked_at = self.now
        self.storm = Storm()
        self.limit = Limit(None, None, "", None, 0.0)
        self.seen: list[str] = []

    def change(self, signals: dict[str, Any]) -> None:
        """``rank0`` and ``rank1`` change a rank, ``jump`` the clock, ``restart`` the limiter, all
        else is a field of ``World``."""
        for name, value in signals.items():
            if name.startswith("rank") and name != "ranks":
                rank = self.world.ranks.setdefault(int(name.removeprefix("rank")), Rank())
                for key, figure in value.items():
                    assert hasattr(rank, key), key
                    setattr(rank, key, figure)
            elif name == "jump":
                self.now += value
            elif name == "restart":
                self.storm = Storm()
            elif name == "sizes":
                self.sizes = Sizes(**(SIZES | value))
            else:
                assert hasattr(self.world, name), name
                setattr(self.world, name, value)

    def play(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            signals = self.signals()
            self.storm = advance(self.storm, now=self.now, signals=signals, sizes=self.sizes)
            self.limit = limit(self.storm, now=self.now, signals=signals, sizes=self.sizes)
            self.seen.append(self.storm.state.value)

    def signals(self) -> Signals:
        world = self.world
        if world.counted:
            self.engines_at = self.now
        if world.asked:
            self.asked_at = self.now
        return Signals(
            ranks=tuple(self._rank(number, rank) for number, rank in world.ranks.items()),
            engines=world.engines,
            engines_at=self.engines_at,
            tokens=self._tokens(),
            counts_tokens=world.counts,
            offered=world.offered,
            planned=world.planned,
        )

    def _rank(self, number: int, rank: Rank) -> RankSignal:
        if rank.answers:
            rank.at = self.asked_at
            if rank.uptime is not None:
                rank.uptime += 1.0
        return RankSignal(
            rank=number,
            asked=self.asked_at,
            answers=rank.answers,
            at=rank.at,
            run_id=rank.run if rank.at is not None else "",
            keys=rank.keys if rank.at is not None else 0,
            used_bytes=rank.used if rank.at is not None else 0,
            uptime=rank.uptime,
        )

    def _tokens(self) -> TokenSignal | None:
        world = self.world
        if not world.scraped or not world.counts or not world.engines:
            return None
        prompt = world.offered or 0.0
        allowed = self.limit.tokens_per_second
        if world.limited and allowed is not None:
            prompt = min(prompt, allowed)
        rate = world.rate or self.sizes.engine_rate
        computed = min(prompt * (1 - world.hits), world.engines * rate) * (1 - world.hangs)
        return TokenSignal(
            prompt=prompt,
            hit=prompt * world.hits,
            computed=computed,
            seconds=1.0,
            engines=world.engines,
            waiting=world.waiting,
            source="vllm:external_prefix_cache_hits",
            busy=computed / rate if world.busy else None,
        )
