"""Each second a look at every tier: what the machine is told, and what is published of it."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from signals_kit import pod, tier

from kvtier.admission.storm import Cause, State
from kvtier.engines.hits import TokenCounters
from kvtier.limiter import watch as watch_module
from kvtier.limiter.known import LAPSE, Known
from kvtier.limiter.tokens import Reading
from kvtier.limiter.watch import Watch
from kvtier.reconcile.clock import FakeClock
from kvtier.store.protocol import StoreUnreachable

KEY = ("prefill", "llama")
SECRET = {"data": {"token": "dA=="}}


@dataclass
class Rank:
    up: bool = True
    run: str = "run-1"
    keys: int = 5000
    asked: int = 0


@dataclass
class World:
    """A tier of two ranks and three engines, and a watch that the test moves second by second."""

    clock: FakeClock = field(default_factory=FakeClock)
    known: Known = field(default_factory=Known)
    ranks: dict[str, Rank] = field(default_factory=dict)
    pods_known_at: float | None = None
    api_away: bool = False
    prompt: float = 0.0
    hit: float = 0.0
    tokens_told: bool = True

    def __post_init__(self) -> None:
        self.known.list_tiers([tier()], namespace="", now=0.0)
        self.known.list_pods([pod("a"), pod("b"), pod("c")], namespace="")
        self.watch = Watch(
            self.known,
            pods_known_at=lambda _: self.pods_known_at,
            get_secret=self.secret,
            connect=self.connect,
            clock=self.clock,
            jitter=lambda: 0.0,
        )

    async def secret(self, namespace: str, name: str):
        return SECRET

    def rank(self, host: str) -> Rank:
        return self.ranks.setdefault(host.split(".")[0], Rank())

    @asynccontextmanager
    async def connect(self, address, credentials):
        rank = self.rank(address.host)
        if not rank.up:
            raise StoreUnreachable("refused") from ConnectionRefusedError()
        yield Session(rank)

    async def seconds(self, count: int, *, rate: float = 0.0, hits: float = 0.0) -> None:
        """So many seconds, with ``rate`` prompt tokens/s in all, the share ``hits`` of them hit."""
        for _ in range(count):
            if not self.api_away:
                self.pods_known_at = self.clock.monotonic()
            self.prompt += rate
            self.hit += rate * hits
            tokens = self.watch.tokens(KEY)
            if self.tokens_told and tokens is not None:
                at = self.clock.monotonic()
                counters = TokenCounters(
                    source="s",
                    prompt=self.prompt / 3,
                    hit=self.hit / 3,
                    computed=(self.prompt - self.hit) / 3,
                    waiting=2.0,
                )
                names = ("a", "b", "c")
                found = {name: Reading(counters, at) for name in names}
                tokens.take(found, alive=names, now=at)
            if rate:
                self.watch.set_offered(*KEY, rate)
            await self.clock.advance(1.0)

    @property
    def view(self):
        found = self.watch.get(*KEY)
        assert found is not None
        return found


class Session:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.run = rank.run

    async def info(self, *sections: str) -> dict[str, str]:
        self.rank.asked += 1
        if not self.rank.up or self.rank.run != self.run:
            raise StoreUnreachable("closed")
        if sections == ("server",):
            return {"run_id": self.run, "uptime_in_seconds": "86400"}
        used = str(1_000_000 + 1000 * self.rank.keys)
        return {"used_memory": used, "db0": f"keys={self.rank.keys},expires=0"}


@pytest.fixture
async def world():
    found = World()
    stop = asyncio.Event()
    task = asyncio.create_task(found.watch.run(stop))
    yield found
    stop.set()
    await found.clock.advance(1.0)
    await asyncio.wait_for(task, 5)


async def test_a_warm_tier_is_open_and_what_is_known_of_it_is_published(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    view = world.view
    assert (view.namespace, view.name, view.mode) == ("prefill", "llama", "Observe")
    assert (view.storm.state, view.limit.tokens_per_second) == (State.OPEN, None)
    assert view.engines == 3
    assert view.mean_prompt == 4000
    assert view.queued_seen == 3 * 2 * 4000
    assert world.clock.monotonic() - view.known_at <= 1
    assert list(world.watch.all()) == [view]
    assert world.watch.get("prefill", "other") is None


async def test_a_rank_that_is_lost_is_a_storm_within_three_seconds(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    world.ranks["llama-r1"].up = False
    await world.seconds(3, rate=20_000, hits=0.0)
    view = world.view
    assert (view.storm.state, view.storm.cause) == (State.STORM, Cause.RANK_LOST)
    # Three engines at 5,000 tokens/s, 0.8 of it.
    assert view.limit.tokens_per_second == pytest.approx(12_000)
    # What they prefill in two seconds.
    assert view.limit.max_queued == pytest.approx(30_000)


async def test_a_rank_that_restarted_is_a_storm_at_once(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    world.ranks["llama-r0"].run, world.ranks["llama-r0"].keys = "run-2", 0
    await world.seconds(2, rate=20_000)
    assert world.view.storm.cause is Cause.RANK_RESTARTED


async def test_a_planned_storm_is_one_from_the_next_look_on(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    since = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"admission": {"state": "Storm", "reason": "Planned", "since": since}}
    world.known.see_tier(tier(status=status), now=world.clock.monotonic())
    await world.seconds(2, rate=20_000, hits=0.8)
    assert world.view.storm.cause is Cause.PLANNED


async def test_the_operator_s_figures_count_before_the_spec_s(world: World):
    status = {
        "admission": {
            "state": "Open",
            "engineTokensPerSecond": 3000,
            "meanPromptTokens": 9000,
            "stormFactor": 5,
        }
    }
    world.known.see_tier(tier(status=status), now=0.0)
    await world.seconds(30, rate=10_000, hits=0.8)
    world.ranks["llama-r1"].up = False
    await world.seconds(3, rate=10_000)
    assert world.view.mean_prompt == 9000
    assert world.view.limit.tokens_per_second == pytest.approx(3 * 3000 * 0.8)


async def test_what_waits_is_told_once_for_each_reading(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    assert world.view.queued_seen == 3 * 2 * 4000
    # A Prometheus scrapes every 30 s, and nothing is as it was a second after that.
    world.tokens_told = False
    await world.seconds(1, rate=20_000)
    assert world.view.queued_seen is None
    world.tokens_told = True
    await world.seconds(1, rate=20_000)
    assert world.view.queued_seen == 3 * 2 * 4000


@pytest.mark.parametrize(
    "value", [1, 10**18, pytest.param(10**400, id="huge"), float("inf"), float("nan"), True]
)
async def test_a_status_of_nonsense_is_no_outage_and_no_open_door(world: World, value: float):
    told = ("engineTokensPerSecond", "meanPromptTokens", "stormFactor")
    status = {"admission": dict.fromkeys(told, value)}
    world.known.see_tier(tier(status=status), now=0.0)
    await world.seconds(30, rate=10_000, hits=0.8)
    world.ranks["llama-r1"].up = False
    await world.seconds(3, rate=10_000, hits=0.0)
    found = world.view.limit.tokens_per_second
    declared = 3 * 5000 * 0.8
    assert found is not None
    assert declared / 10 <= found <= declared * 10
    assert 400 <= world.view.mean_prompt <= 40_000


async def test_a_tier_that_is_deleted_in_a_storm_has_its_limit_for_15_minutes_and_then_none(
    world: World,
):
    await world.seconds(30, rate=20_000, hits=0.8)
    for rank in world.ranks.values():
        rank.up = False
    world.known.lose_tier(tier(), now=world.clock.monotonic())
    await world.seconds(5, rate=20_000)
    assert world.view.limit.tokens_per_second is not None
    await world.seconds(int(LAPSE) + 2, rate=20_000)
    assert world.watch.get(*KEY) is None
    asked = sum(each.asked for each in world.ranks.values())
    await world.seconds(5)
    assert sum(each.asked for each in world.ranks.values()) == asked


async def test_a_tier_that_is_made_anew_has_a_machine_that_knows_nothing(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    world.ranks["llama-r1"].up = False
    await world.seconds(5, rate=20_000)
    assert world.view.storm.state is State.STORM
    world.ranks.clear()
    world.known.see_tier(tier(uid="u2"), now=world.clock.monotonic())
    await world.seconds(2)
    assert world.view.storm.state is State.OPEN


async def test_with_the_api_server_away_a_storm_still_begins(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    world.api_away = True
    await world.seconds(120, rate=20_000, hits=0.8)
    world.ranks["llama-r1"].up = False
    await world.seconds(3, rate=20_000)
    assert world.view.engines == 3
    assert world.view.limit.tokens_per_second == pytest.approx(12_000)


async def test_before_pods_were_listed_the_number_of_engines_is_not_known(world: World):
    world.api_away = True
    await world.seconds(5)
    assert world.view.engines is None
    assert world.view.limit.tokens_per_second is None


async def test_engines_that_all_answer_are_still_there_while_the_api_server_is_away(world: World):
    await world.seconds(10)
    world.api_away = True
    told = []
    original = watch_module.advance

    def advance(storm, **given):
        told.append(given["signals"].engines_at)
        return original(storm, **given)

    watch_module.advance = advance
    try:
        await world.seconds(20)
        stale = told[-1]
        world.watch.answered(KEY)
        await world.seconds(2)
    finally:
        watch_module.advance = original
    assert stale < 11
    assert told[-1] >= 30


async def test_figures_are_given_to_the_machine_once(world: World):
    given = []
    original = watch_module.advance

    def advance(storm, **what):
        given.append(what["signals"].tokens)
        return original(storm, **what)

    watch_module.advance = advance
    try:
        await world.seconds(10, rate=3000, hits=0.5)
        world.tokens_told = False
        await world.seconds(3)
    finally:
        watch_module.advance = original
    told = [each for each in given if each is not None]
    # The first reading says only from where to count.
    assert sum(each.prompt for each in told) == pytest.approx(world.prompt - 3000)
    assert given[-2:] == [None, None]


async def test_what_the_server_saw_coming_counts_for_some_seconds(world: World):
    seen = []
    original = watch_module.advance

    def advance(storm, **what):
        seen.append(what["signals"].offered)
        return original(storm, **what)

    watch_module.advance = advance
    try:
        world.watch.set_offered(*KEY, 5.0)
        await world.seconds(2)
        world.watch.set_offered(*KEY, 700.0)
        world.watch.set_offered("prefill", "unknown", 1.0)
        await world.seconds(4)
        assert seen[-1] == 700
        await world.seconds(4)
        assert seen[-1] is None
    finally:
        watch_module.advance = original


async def test_one_tier_s_failure_is_not_another_s(world: World, caplog):
    world.known.list_tiers([tier(), tier(name="bad")], namespace="", now=0.0)
    world.known.tiers["prefill", "bad"].storm_factor = float("nan")
    await world.seconds(3)
    assert world.watch.get("prefill", "bad") is None
    assert world.view.known_at >= 2
    assert "prefill/bad: no look" in caplog.text


async def test_a_changed_spec_counts_without_another_machine(world: World):
    await world.seconds(30, rate=20_000, hits=0.8)
    changed = tier()
    changed["spec"]["admission"] = {"mode": "Enforce", "utilization": "0.5"}
    world.known.see_tier(changed, now=world.clock.monotonic())
    world.ranks["llama-r1"].up = False
    await world.seconds(3, rate=20_000)
    assert world.view.mode == "Enforce"
    assert world.view.limit.tokens_per_second == pytest.approx(7500)
