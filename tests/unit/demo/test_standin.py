"""The stand-in engine against real Valkeys with the users that kvtier gives them."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import valkey
from standin import Engine, Rank, Round, Wrong, chunk_hashes, wire_key
from valkey_servers import Server, running_server

from kvtier.api.load import load_file
from kvtier.generation.acl import acl_file, key_prefix
from kvtier.generation.record import Record, new_record
from kvtier.redact import new_token

CHECKOUT = Path(__file__).resolve().parents[3]
ENGINE = Engine(model="some/model", chunk_bytes=10_000, prompt_tokens=1024, interval=1.0, port=8000)
HASHES = list(chunk_hashes(tokens=1024, chunk_tokens=256))


class Tier:
    """Two ranks, and the engine Secret's words about them."""

    def __init__(self, record: Record, servers: list[Server]) -> None:
        self.servers = servers
        self._record = record
        self._connection: dict[str, Any] = {
            "username": record.current.token,
            "password": record.current.token,
            "requestTimeoutSeconds": 5.0,
        }

    def prefix(self, rank: int) -> str:
        return key_prefix(self._record.current.id, rank)

    def rank(self, number: int, *, server: int | None = None) -> Rank:
        port = self.servers[number if server is None else server].port
        place = {"host": "127.0.0.1", "port": port, "prefix": self.prefix(number)}
        return Rank(self._connection, {"rank": number, **place})

    def operator(self, rank: int) -> Any:
        return valkey.Valkey(
            port=self.servers[rank].port,
            username="operator",
            password=self._record.operator_token,
        )

    def engine(self, rank: int) -> Any:
        token = self._record.current.token
        return valkey.Valkey(port=self.servers[rank].port, username=token, password=token)

    def allow_all_keys(self, rank: int) -> None:
        self.operator(rank).execute_command("ACL", "SETUSER", self._record.current.token, "~*")


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    spec = load_file(str(CHECKOUT / "deploy/samples/laptop.yaml")).spec
    record = new_record(spec, operator_token=new_token(), engine_token=new_token())
    with ExitStack() as stack:
        servers = []
        for rank in range(2):
            directory = tmp_path / str(rank)
            directory.mkdir()
            text = acl_file(record, rank=rank)
            servers.append(
                stack.enter_context(running_server("9.1", directory=directory, acl=text))
            )
        yield Tier(record, servers)


def test_what_one_engine_stores_is_a_hit_for_the_next(tier: Tier) -> None:
    first = tier.rank(0).look_up(ENGINE, HASHES)
    second = tier.rank(0).look_up(ENGINE, HASHES)
    assert (first.hit, first.stored, first.verified) == (0, 4, 4)
    assert (second.hit, second.stored, second.verified) == (4, 0, 4)
    assert first.digest == second.digest


def test_chunks_are_stored_whole_under_the_keys_that_lmcache_uses(tier: Tier) -> None:
    tier.rank(1).look_up(ENGINE, HASHES)
    wanted = {
        f"{tier.prefix(1)}@some/model@01000100@0@{chunk_hash}".encode() for chunk_hash in HASHES
    }
    assert set(tier.operator(1).scan(count=1000)[1]) == wanted
    assert {len(tier.engine(1).get(key)) for key in wanted} == {10_000}


def test_a_hit_ends_at_the_first_chunk_that_is_missing(tier: Tier) -> None:
    tier.rank(0).look_up(ENGINE, HASHES)
    tier.operator(0).unlink(wire_key(tier.prefix(0), "some/model", HASHES[1]))
    done = tier.rank(0).look_up(ENGINE, HASHES)
    assert (done.hit, done.stored) == (1, 1)


def test_one_flipped_bit_is_seen(tier: Tier) -> None:
    tier.rank(0).look_up(ENGINE, HASHES)
    key = wire_key(tier.prefix(0), "some/model", HASHES[2])
    value = bytearray(tier.engine(0).get(key))
    value[7_777] ^= 1
    tier.engine(0).set(key, bytes(value))
    with pytest.raises(Wrong, match=r"rank 0: other bytes"):
        tier.rank(0).look_up(ENGINE, HASHES)


def test_the_address_of_another_rank_is_refused_by_valkey(tier: Tier) -> None:
    assert "permission" in tier.rank(0, server=1).look_up(ENGINE, HASHES).problem.lower()


def test_a_rank_that_hands_out_another_ranks_keys_is_an_error(tier: Tier) -> None:
    rank, other = tier.rank(0), tier.rank(1)
    rank.check_refuses(other, "some/model")
    tier.allow_all_keys(0)
    with pytest.raises(Wrong, match=r"rank 0 lets its user read keys of rank 1"):
        rank.check_refuses(other, "some/model")


def test_a_dead_rank_is_a_problem_and_not_a_crash(tier: Tier) -> None:
    rank = tier.rank(0)
    assert rank.look_up(ENGINE, HASHES).stored == 4
    os.kill(tier.servers[0].pid, signal.SIGKILL)
    done = rank.look_up(ENGINE, HASHES)
    assert done.problem
    assert done == Round(problem=done.problem)
