"""Chunks of whole tiers land where the striping says, on real servers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from driving import LOAD, SIZE, Watch, drive
from local_tier import LocalTier, NewLocalTier

from kvtier.loadtest.engine import Engine
from kvtier.loadtest.report import Results, exit_code
from kvtier.loadtest.striping import Striping

FOUR = replace(LOAD, rate=50, prompt_tokens=1024, prefixes=1, prefix_tokens=768)
"""Four chunks a prompt; the last one is its own."""


def hashes(tier: LocalTier) -> list[set[bytes]]:
    """Of the chunks that are on each rank."""
    return [{key.split(b"@")[4] for key in tier.keys(rank)} for rank in (0, 1)]


@pytest.fixture
def stored(local_tier: NewLocalTier) -> Callable[[Striping], LocalTier]:
    """A tier of one server for both workers, after some requests and their stores."""

    def store(striping: Striping) -> LocalTier:
        tier = local_tier(pool={"striping": "Hash", "ranks": 2})

        def some(engine: Engine, watch: Watch) -> None:
            written = [rank.measures for rank in engine.ranks]
            watch.until(lambda: all(each().bytes_written for each in written), what="stores")
            until = sum(each().bytes_written for each in written) + 20 * SIZE
            watch.until(
                lambda: sum(each().bytes_written for each in written) > until, what="more stores"
            )

        results: Results = drive(tier.secret, workload=FOUR, striping=striping, during=some)
        assert exit_code(results) == 0
        assert not results.outages
        return tier

    return store


def test_with_hash_a_chunk_is_on_the_rank_that_its_hash_picks(
    stored: Callable[[Striping], LocalTier],
) -> None:
    tier = stored(Striping.HASH)
    for rank, mine in enumerate(hashes(tier)):
        assert mine
        assert {int(each, 16) % 2 for each in mine} == {rank}


def test_with_chunk_modulo_chunk_c_is_on_rank_c_mod_w(
    stored: Callable[[Striping], LocalTier],
) -> None:
    first, second = hashes(stored(Striping.CHUNK_MODULO))
    # Chunks 0 and 2 of the one beginning, and chunk 1 with all the ends.
    assert len(first) == 2
    assert len(second) > 3
    assert not first & second


def test_one_server_for_all_workers_stores_an_object_for_each(
    stored: Callable[[Striping], LocalTier],
) -> None:
    tier = stored(Striping.HASH)
    keys = [key for rank in (0, 1) for key in tier.keys(rank)]
    assert {key.split(b"@")[2] for key in keys} == {b"02000200", b"02010201"}
    # The last store may have been cut between a chunk's objects.
    whole = [key for key in keys if key.split(b"@")[2] == b"02000200"]
    assert len(keys) / 2 == pytest.approx(len(whole), abs=1)
