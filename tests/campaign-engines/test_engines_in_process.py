"""LMCache in an engine's worker, from the files that a tier publishes: found, got, and lost.

All of LMCache but what copies between memory and device: for a CPU it has no such part, so vLLM
cannot run it here (``in_process_program``).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import in_process_tier
import pytest
from faulty_rank import HOW, lost
from in_process_tier import CHUNKS, WORLD, Row, Tier, Worker, running

from kvtier.generation.acl import key_prefix
from livecluster.figures import write_row

LOOKUP_SECONDS = 1.0
"""Of a call from the second one on: no slack, since it waits for nobody."""
BACK_SECONDS = 5.0
SLACK = 3
"""Of short times: tests share CPUs."""
LATER, LATER_PAUSE = 30, 0.1
TRIED = 16
"""Chunks that tell whether the rank is back."""
FIRST = 1.0 + 0.84
"""A connection that is begun and a request, each until its timeout."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="iptables needs root")
HOW_IT_IS_LOST = [pytest.param(how, marks=ROOT_ONLY if how == "blackholed" else ()) for how in HOW]
SHARD, HASH = Row("Shard"), Row("Hash")
REQUESTS, SHORT = range(1, 41), 4
"""Prompts of so many chunks: ten or more of them meet the lost rank between two looks."""
MONITORED = 3.0
"""Seconds between two looks of LMCache's health monitor, which by default are 30."""

NewTier = Callable[[Row], AbstractContextManager[Tier]]


@pytest.fixture(scope="module")
def inside(program: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with in_process_tier.program(program[0], home=tmp_path_factory.mktemp("inside")) as found:
        yield found


@pytest.fixture
def new_tier(inside: Path, tmp_path: Path) -> NewTier:
    return partial(running, home=tmp_path, program=inside)


@pytest.mark.parametrize("row", [SHARD, HASH, Row("Hash", tls=True)], ids=str)
def test_what_the_workers_of_an_engine_store_those_of_another_get(
    new_tier: NewTier, row: Row
) -> None:
    with new_tier(row) as tier:
        with tier.workers(*both(tier.publish("first"))) as first:
            assert all(each.opened["backends"][-1] == "RemoteBackend-kvtier" for each in first)
            assert {each.opened["min_retrieve_tokens"] for each in first} == {256}
            stored = [each.store(1)["seconds"] for each in first]
            keys = [each.keys(1) for each in first]
            hashes = first[0].hashes(1)
            complaints = [line for each in first for line in each.said().splitlines()]
        assert not [line for line in complaints if "nknown config" in line]
        assert not [line for line in complaints if "ERROR" in line]
        for number, rank in enumerate(tier.ranks):
            prefix = key_prefix(tier.record.current.id, number)
            mine = keys[number] if row.striping == "Shard" else hashed(keys, hashes, to=number)
            assert rank.keys() == sorted(f"{prefix}@{key}" for key in mine)
        with tier.workers(*both(tier.publish("second"))) as second:
            lookups = [each.lookup(1) for each in second]
            loads = [each.retrieve(1) for each in second]
            assert [hits for _, hits in lookups] == [CHUNKS] * WORLD
            assert [(load["chunks"], load["right"]) for load in loads] == [(CHUNKS, CHUNKS)] * WORLD
            assert [each.lookup(2)[1] for each in second] == [0] * WORLD
    write_row(
        "engines.md",
        place="in-process",
        row=(
            str(row),
            milliseconds(max(stored)),
            milliseconds(max(seconds for seconds, _ in lookups)),
            milliseconds(max(load["seconds"] for load in loads)),
        ),
    )


def test_of_latents_worker_0_stores_and_gets_for_all(new_tier: NewTier) -> None:
    row = Row("Hash", "mla")
    with new_tier(row) as tier:
        with tier.workers(*both(tier.publish("first"))) as first:
            stored = first[0].store(1)["seconds"]
            first[1].store(2, there=False)
            keys, hashes = first[0].keys(1), first[0].hashes(1)
        for number, rank in enumerate(tier.ranks):
            prefix = key_prefix(tier.record.current.id, number)
            mine = hashed([keys], hashes, to=number)
            assert rank.keys() == sorted(f"{prefix}@{key}" for key in mine), "of worker 0 alone"
        with tier.workers((0, tier.publish("second"))) as (second,):
            seconds, hits = second.lookup(1)
            load = second.retrieve(1)
            assert hits == load["chunks"] == load["right"] == CHUNKS
    cells = (milliseconds(stored), milliseconds(seconds), milliseconds(load["seconds"]))
    write_row("engines.md", place="in-process", row=(str(row), *cells))


@pytest.mark.parametrize("row", [SHARD, HASH], ids=str)
def test_a_swapped_rank_is_a_miss(new_tier: NewTier, row: Row) -> None:
    with new_tier(row) as tier:
        of_both = (0, tier.publish("right")), (0, tier.publish("swapped", swapped=True))
        with tier.workers(*of_both) as (right, swapped):
            right.store(1)
            right.forget()
            assert right.lookup(1)[1] == CHUNKS
            assert swapped.lookup(1)[1] == 0
            assert swapped.retrieve(1)["chunks"] == 0
            assert swapped.get(1)[1] == 0
            assert right.retrieve(1)["right"] == CHUNKS


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
@pytest.mark.parametrize("row", [SHARD, HASH], ids=str)
def test_a_lost_rank_is_a_miss(new_tier: NewTier, row: Row, how: str) -> None:
    """Rank 1: with Shard that of worker 1, with Hash that of about half of the chunks."""
    with new_tier(row) as tier, tier.workers(*both(tier.publish("engine"))) as (other, worker):
        long, again, kept = prompts(row, worker)
        for each in (other, worker):
            for prompt in (long, again):
                each.store(prompt)
            each.forget()
        live, hits = worker.lookup(long)
        assert hits == CHUNKS
        assert worker.pin(again, name="before") == CHUNKS
        with lost(tier.ranks[1], how):
            first = worker.retrieve(again, pinned="before")
            worker.forget()
            found = [worker.lookup(long) for _ in range(LATER) if not sleep(LATER_PAUSE)]
            got = [worker.get(long) for _ in range(LATER)]
            put = worker.store(long + 1000, there=False)["returned"]
            worker.forget()
            others = other.retrieve(long)
        back = back_again(worker, first=2000)
        assert worker.healthy()
    slowest_lookup, slowest_get = (max(each)[0] for each in (found, got))
    cells = (
        milliseconds(live),
        f"{first['seconds']:.2f} s",
        milliseconds(slowest_lookup),
        milliseconds(slowest_get),
        f"{back:.1f} s",
    )
    write_row("engines.md", place="in-process-faults", row=(f"{row.striping}, {how}", *cells))
    assert first["chunks"] == first["right"] == kept[again].leading
    assert {hits for _, hits in found} == {kept[long].leading}
    assert {hits for _, hits in got} == {kept[long].all}
    assert others["chunks"] == others["right"] == (CHUNKS if row == SHARD else kept[long].leading)
    assert first["seconds"] < SLACK * FIRST, cells
    assert max(slowest_lookup, slowest_get, put) < LOOKUP_SECONDS, cells
    assert back < SLACK * BACK_SECONDS, cells


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
def test_lmcache_starts_while_a_rank_is_lost(new_tier: NewTier, how: str) -> None:
    with new_tier(SHARD) as tier, ExitStack() as stack:
        secret = tier.publish("engine")
        with lost(tier.ranks[1], how):
            (worker,) = stack.enter_context(tier.workers((1, secret)))
            assert worker.opened["backends"][-1] == "RemoteBackend-kvtier"
            seconds, hits = worker.lookup(1)
            assert hits == 0
            assert seconds < SLACK * FIRST
        assert back_again(worker, first=1) < SLACK * BACK_SECONDS


def test_hits_that_a_lost_rank_takes_back_do_not_turn_lmcache_off(new_tier: NewTier) -> None:
    """Its health monitor counts them: from ten between two looks on it would be off for minutes."""
    with (
        new_tier(SHARD) as tier,
        tier.workers((1, tier.publish("engine", ping_interval=MONITORED))) as (worker,),
    ):
        for prompt in REQUESTS:
            worker.store(prompt, chunks=SHORT)
        worker.forget()
        for prompt in REQUESTS:
            assert worker.pin(prompt, chunks=SHORT, name=str(prompt)) == SHORT
        with lost(tier.ranks[1], "hung"):
            for prompt in REQUESTS:
                assert worker.retrieve(prompt, chunks=SHORT, pinned=str(prompt))["chunks"] == 0
            sleep(2 * MONITORED)
            assert worker.healthy()
        assert back_again(worker, first=100) < SLACK * BACK_SECONDS
        assert worker.retrieve(REQUESTS[0], chunks=SHORT)["right"] == SHORT


class Kept:
    """How many of a prompt's chunks are not on rank 1, and how many of these lead."""

    def __init__(self, row: Row, hashes: Sequence[int]) -> None:
        here = [row == HASH and each % WORLD == 0 for each in hashes]
        self.all = sum(here)
        self.leading = (*here, False).index(False)


def prompts(row: Row, worker: Worker) -> tuple[int, int, dict[int, Kept]]:
    """Two that lead on rank 0 with Hash, so that a part of them stays a hit."""
    kept = {prompt: Kept(row, worker.hashes(prompt)) for prompt in range(1, 20)}
    long, again = [prompt for prompt, each in kept.items() if each.leading or row == SHARD][:2]
    return long, again, kept


def hashed(keys: Sequence[Sequence[str]], hashes: Sequence[int], *, to: int) -> list[str]:
    each = [[key for key, at in zip(of, hashes, strict=True) if at % WORLD == to] for of in keys]
    return [key for of in each for key in of]


def both(secret: Path) -> list[tuple[int, Path]]:
    return [(number, secret) for number in range(WORLD)]


def back_again(worker: Worker, *, first: int) -> float:
    """Seconds from now until what is stored is found in the tier."""
    begun, prompt = monotonic(), first
    while monotonic() < begun + 2 * SLACK * BACK_SECONDS:
        worker.store(prompt, chunks=TRIED, there=False)
        sleep(0.05)
        if worker.found(prompt, chunks=TRIED)[1] == TRIED:
            return monotonic() - begun
        prompt += 1
    return monotonic() - begun


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
