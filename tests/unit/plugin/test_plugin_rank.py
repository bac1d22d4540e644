"""What ends when, while GLIDE has a request: with a client that answers when the test says so."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic, sleep

import glide_sync
import pytest
from plugin_kit import PATIENCE

from kvtier_lmcache import rank as module
from kvtier_lmcache.breaker import State
from kvtier_lmcache.config import Config, parse
from kvtier_lmcache.counters import Counts
from kvtier_lmcache.jobs import Job, Kind, slices
from kvtier_lmcache.rank import Rank


class HeldClient:
    """Each request waits until the test lets it go, with an error if it was given one."""

    made: list["HeldClient"]

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.goes = threading.Semaphore(0)
        self.error: Exception | None = None
        self.closed = False
        HeldClient.made.append(self)

    def _answer(self, key: bytes) -> None:
        self.asked.append(key)
        assert self.goes.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error

    def exists(self, keys: Sequence[bytes]) -> int:
        self._answer(keys[0])
        return len(keys)

    def get(self, key: bytes, buffer: memoryview) -> bytes:
        self._answer(key)
        return b"%d" % buffer.nbytes

    def set(self, key: bytes, value: memoryview) -> None:
        self._answer(key)

    def close(self) -> None:
        self.closed = True


class Asked:
    """A job and what came of it."""

    def __init__(self, kind: Kind, key: str) -> None:
        self.answers: list[Sequence[bool]] = []
        buffer = None if kind is Kind.LOOKUP else memoryview(bytearray(4))
        self.job = Job(kind=kind, keys=(key.encode(),), done=self.answers.append, buffer=buffer)


def soon(condition: object) -> None:
    begun = monotonic()
    assert callable(condition)
    while not condition():
        assert monotonic() - begun < PATIENCE
        sleep(0.002)


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    token = tmp_path_factory.mktemp("credentials") / "token"
    token.write_text("t")
    ranks = [{"host": "127.0.0.1", "port": 1, "prefix": "p"}]
    given = {"striping": "Hash", "ranks": ranks, "credentials": str(token)}
    return parse(
        given | {"workers": 2, "request_timeout": PATIENCE, "connection_timeout": PATIENCE}
    )


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[HeldClient]:
    HeldClient.made = []
    monkeypatch.setattr(module, "connect", lambda *_, **__: HeldClient())
    monkeypatch.setattr(module, "probe", lambda *_, **__: None)
    return HeldClient.made


@pytest.fixture
def rank(config: Config, clients: list[HeldClient]) -> Iterator[Rank]:
    made = Rank(config.ranks[0], config=config, counts=Counts(), told=lambda _: None)
    soon(lambda: len(clients) == 2 and made.state is State.CLOSED)
    yield made
    for each in clients:
        each.goes.release(100)
    made.close()


def client_of(clients: list[HeldClient], asked: Asked) -> HeldClient:
    found = [each for each in clients if each.asked[-1:] == [asked.job.keys[0]]]
    return found[0]


def submitted(rank: Rank, clients: list[HeldClient], kind: Kind, key: str) -> Asked:
    """A job that a worker has."""
    asked = Asked(kind, key)
    rank.submit([asked.job])
    soon(lambda: any(asked.job.keys[0] in each.asked for each in clients))
    return asked


@pytest.mark.parametrize("kind", [Kind.LOAD, Kind.STORE])
def test_a_buffer_is_held_until_its_request_returns_though_the_rank_is_gone(
    rank: Rank, clients: list[HeldClient], kind: Kind
) -> None:
    moving = submitted(rank, clients, kind, "moving")
    lost = submitted(rank, clients, Kind.LOOKUP, "lost")
    client = client_of(clients, lost)
    client.error = glide_sync.TimeoutError("no answer")
    client.goes.release()
    soon(lambda: lost.answers)
    assert rank.state is not State.CLOSED
    assert moving.answers == []
    client_of(clients, moving).goes.release()
    soon(lambda: moving.answers)
    assert moving.answers == [[True]]


def test_a_look_up_in_flight_ends_when_another_request_finds_the_rank_gone(
    rank: Rank, clients: list[HeldClient]
) -> None:
    held = submitted(rank, clients, Kind.LOOKUP, "held")
    lost = submitted(rank, clients, Kind.LOAD, "lost")
    waits = Asked(Kind.STORE, "waits")
    rank.submit([waits.job])
    client = client_of(clients, lost)
    client.error = glide_sync.ConnectionError("lost")
    client.goes.release()
    soon(lambda: lost.answers)
    assert [held.answers, lost.answers, waits.answers] == [[[False]]] * 3
    client_of(clients, held).goes.release()
    soon(lambda: client_of(clients, held).closed)
    assert held.answers == [[False]]


def test_a_request_that_is_refused_leaves_the_rank_and_its_connection(
    rank: Rank, clients: list[HeldClient]
) -> None:
    refused = submitted(rank, clients, Kind.LOAD, "refused")
    client = client_of(clients, refused)
    client.error = glide_sync.RequestError("NOPERM")
    client.goes.release()
    soon(lambda: refused.answers)
    assert refused.answers == [[False]]
    assert rank.state is State.CLOSED
    assert not client.closed


@pytest.mark.parametrize("words", ["NOAUTH Authentication required", "WRONGPASS invalid"])
def test_a_refused_login_is_a_rank_that_is_gone(
    rank: Rank, clients: list[HeldClient], words: str
) -> None:
    lost = submitted(rank, clients, Kind.LOAD, "lost")
    client = client_of(clients, lost)
    client.error = glide_sync.RequestError(words)
    client.goes.release()
    soon(lambda: lost.answers)
    assert rank.state is not State.CLOSED
    soon(lambda: client.closed)


def test_new_connections_replace_those_of_a_rank_that_was_gone(
    rank: Rank, clients: list[HeldClient]
) -> None:
    before = list(clients)
    lost = submitted(rank, clients, Kind.LOAD, "lost")
    client_of(clients, lost).error = glide_sync.TimeoutError("no answer")
    client_of(clients, lost).goes.release()
    soon(lambda: rank.state is State.CLOSED and len(clients) == 4)
    soon(lambda: all(each.closed for each in before))
    again = submitted(rank, clients, Kind.LOOKUP, "again")
    client_of(clients[2:], again).goes.release()
    soon(lambda: again.answers)
    assert again.answers == [[True]]


def test_closing_waits_for_a_buffer_that_is_in_use_and_for_nothing_else(
    rank: Rank, clients: list[HeldClient]
) -> None:
    looked_up = submitted(rank, clients, Kind.LOOKUP, "looked up")
    moving = submitted(rank, clients, Kind.LOAD, "moving")
    closing = threading.Thread(target=rank.close)
    closing.start()
    soon(lambda: looked_up.answers)
    assert moving.answers == []
    assert closing.is_alive()
    client_of(clients, moving).goes.release()
    closing.join(PATIENCE)
    assert moving.answers == [[True]]


def test_look_ups_go_before_loads_and_stores(rank: Rank, clients: list[HeldClient]) -> None:
    for name in ("a", "b"):
        submitted(rank, clients, Kind.LOAD, name)
    later = [Asked(Kind.STORE, "store"), Asked(Kind.LOAD, "load"), Asked(Kind.LOOKUP, "look up")]
    rank.submit([each.job for each in later])
    for _ in range(3):
        clients[0].goes.release()
    soon(lambda: len(clients[0].asked) == 4)
    assert clients[0].asked[1:] == [b"look up", b"store", b"load"]


def test_more_than_may_wait_is_a_miss(
    rank: Rank, clients: list[HeldClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    for name in ("a", "b"):
        submitted(rank, clients, Kind.LOAD, name)
    waiting = [Asked(Kind.STORE, str(number)) for number in range(3)]
    rank.submit([each.job for each in waiting])
    beyond = Asked(Kind.LOOKUP, "beyond")
    rank.submit([beyond.job])
    assert beyond.answers == [[False]]
    assert [each.answers for each in waiting] == [[]] * 3


def test_keys_are_looked_up_together_but_by_all_workers() -> None:
    assert [len(piece) for piece in slices(64, workers=8)] == [8] * 8
    assert [len(piece) for piece in slices(10, workers=8)] == [8, 2]
    assert [len(piece) for piece in slices(1000, workers=8)] == [64] * 15 + [40]
    for count in range(1, 300):
        pieces = slices(count, workers=3)
        assert [at for piece in pieces for at in piece] == list(range(count))


def test_an_answer_that_nobody_takes_costs_no_worker(rank: Rank, clients: list[HeldClient]) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("a listener's")

    for each in clients:
        each.goes.release(100)
    for kind in (Kind.LOOKUP, Kind.LOAD, Kind.STORE) * 2:
        buffer = None if kind is Kind.LOOKUP else memoryview(bytearray(4))
        rank.submit([Job(kind=kind, keys=(b"refused",), done=refuse, buffer=buffer)])
    taken = Asked(Kind.STORE, "taken")
    rank.submit([taken.job])
    soon(lambda: taken.answers)
    assert taken.answers == [[True]]
    begun = monotonic()
    rank.close()
    assert monotonic() - begun < PATIENCE, "it waits for a buffer that nobody has"


def test_a_rank_comes_though_a_thread_could_not_start(
    config: Config, clients: list[HeldClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failed = threading.Thread.start, []

    def starts(thread: threading.Thread) -> None:
        if thread.name.endswith(" 1") and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    told: list[str] = []
    rank = Rank(config.ranks[0], config=config, counts=Counts(), told=told.append)
    soon(lambda: any("gone (can't start new thread)" in line for line in told))
    soon(lambda: rank.state is State.CLOSED)
    rank.close()


def test_a_rank_comes_though_patience_ended_before_the_first_attempt(
    config: Config, clients: list[HeldClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, late = Rank._keep, threading.Event()

    def keep_later(self: Rank) -> None:
        assert late.wait(PATIENCE)
        keep(self)

    monkeypatch.setattr(Rank, "_keep", keep_later)
    given = replace(config, connection_timeout=0.001)
    rank = Rank(config.ranks[0], config=given, counts=Counts(), told=lambda _: late.set())
    soon(lambda: rank.state is State.CLOSED)
    assert late.is_set()
    rank.close()
