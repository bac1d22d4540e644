"""The reference fetch says what it read and what was wrong with it."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey
from leftovers import assert_nothing_left, servers
from small_trial import SMALL

from kvtier.api.load import parse_tier
from kvtier.generation.record import Record, new_record
from kvtier.loadtest.connection import Connection, load
from kvtier.redact import new_token
from kvtier.trial.files import write_engine, write_ranks
from kvtier.trial.program import find_program
from kvtier.trial.reference import MOST_BYTES, MOST_CHUNKS, chunks_to_fetch, fetch
from kvtier.trial.session import session

TIER = parse_tier(SMALL)


class Running:
    """The small tier on this machine."""

    def __init__(self, connection: Connection, record: Record) -> None:
        self.connection = connection
        self._record = record

    def operator(self, rank: int) -> Any:
        return valkey.Valkey(
            port=self.connection.ranks[rank].port,
            username="operator",
            password=self._record.operator_token,
        )


@pytest.fixture
def running(place: Path) -> Iterator[Running]:
    record = new_record(TIER.spec, operator_token=new_token(), engine_token=new_token())
    with session(threading.Event()) as ranks:
        write_ranks(ranks.directory, TIER, record)
        ports = ranks.start(find_program(None, series="9.1"), ranks=2)
        engine = write_engine(ranks.directory, TIER, record, ports=ports)
        yield Running(load(engine), record)
    assert_nothing_left(place)


def test_a_whole_prompt_is_read_and_right(running: Running) -> None:
    found = fetch(running.connection, stop=threading.Event())
    assert found is not None
    assert (found.tokens, found.chunks, found.wrong) == (4096, 16, None)
    assert found.byte_count == 4096 * 4 * 2 * 2 * 64 * 2
    assert found.seconds > 0
    for rank in (0, 1):
        with running.operator(rank) as client:
            assert client.dbsize() == 16
            statistics = client.info("stats")
            assert statistics["total_net_output_bytes"] > 3 * found.byte_count / 2


def test_a_rank_that_holds_too_little_is_told(running: Running) -> None:
    with running.operator(1) as client:
        client.config_set("maxmemory", "3mb")
    found = fetch(running.connection, stop=threading.Event())
    assert found is not None
    assert found.wrong is not None
    assert found.wrong == "not every chunk was there" or found.wrong.startswith("rank 1: OOM")


def test_a_dead_rank_is_named(running: Running, place: Path) -> None:
    with running.operator(1) as client:
        pid = client.info("server")["process_id"]
    assert pid in servers(place)
    os.kill(pid, signal.SIGKILL)
    found = fetch(running.connection, stop=threading.Event())
    assert found is not None
    assert found.wrong is not None
    assert found.wrong.startswith("rank 1: ")


def test_a_word_to_stop_ends_it(running: Running) -> None:
    stop = threading.Event()
    stop.set()
    assert fetch(running.connection, stop=stop) is None


def test_as_much_is_fetched_as_is_quick_and_fits() -> None:
    assert chunks_to_fetch(1) == MOST_CHUNKS
    assert chunks_to_fetch(80 << 20) == MOST_BYTES // (80 << 20) == 3
    assert chunks_to_fetch(1 << 30) == 1
