"""What bounds a run: its time and its memory, whatever the ranks and their names do."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM
from driving import LOAD, Watch, drive
from local_tier import NewLocalTier
from silent_ranks import silent_ranks

from kvtier.loadtest import engine as engine_module
from kvtier.loadtest import run as run_module
from kvtier.loadtest.connection import load
from kvtier.loadtest.engine import Engine
from kvtier.loadtest.rank import Budget, Rank
from kvtier.loadtest.run import Gathered, Plan
from kvtier.store.failure import Failed, Kind
from kvtier.store.resolve import Resolver

TIMEOUT = 2.0
START_SECONDS = 20.0
"""What starting processes may take on a busy machine."""


def start(secret: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [PROGRAM, "loadtest", "--secret-dir", secret, "-o", "json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_ranks_that_never_answer_hold_a_run_up_once_and_not_each_in_turn(tmp_path: Path) -> None:
    with silent_ranks(tmp_path, ranks=8, request_timeout=TIMEOUT) as secret:
        begun = time.monotonic()
        process = start(secret, "--duration", "2s")
        output, _ = process.communicate(timeout=120)
        took = time.monotonic() - begun
    # One after another they would take 16 s to connect and as long to end.
    assert took < 2 + 2 * TIMEOUT + START_SECONDS
    report = json.loads(output)
    assert process.returncode == 1
    assert report["endedBy"] == "Duration"
    assert 2 <= report["seconds"] < 2 + 2 * TIMEOUT
    assert {(each["rank"], each["kind"]) for each in report["outages"]} == {
        (rank, "timeout") for rank in range(8)
    }


def test_sigterm_while_engines_connect_ends_the_run_with_a_report(tmp_path: Path) -> None:
    limit = 30.0
    with silent_ranks(tmp_path, ranks=1, request_timeout=limit) as secret:
        connecting = json.loads((secret / "connection.json").read_text())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connecting["ranks"][0]["port"] = listener.getsockname()[1]
            (secret / "connection.json").write_text(json.dumps(connecting))
            process = start(secret)
            listener.settimeout(60)
            client, _ = listener.accept()
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=100)
            took = time.monotonic() - begun
            client.close()
    assert took < limit
    report = json.loads(output)
    assert process.returncode == 1
    assert report["endedBy"] == "Signal"
    assert report["completed"] == 0


def test_an_engine_that_connects_stops_when_it_is_told(tmp_path: Path) -> None:
    with silent_ranks(tmp_path, ranks=2, request_timeout=60.0) as secret:
        connection = load(secret)
        engine = Engine(
            engine_module.EngineSettings(
                number=0,
                run="run",
                connection=connection,
                workload=LOAD,
                seconds=1.0,
                max_bytes=1,
            )
        )
        connecting = threading.Thread(target=engine.connect)
        connecting.start()
        engine.stop()
        connecting.join(20)
        assert not connecting.is_alive()
    # Its ranks are gone now, so that no thread of it is left to the tests that follow.
    engine.run(lambda _: None, begin=time.monotonic())


def test_an_engine_that_does_not_end_leaves_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "GRACE_SECONDS", 0.2)
    with silent_ranks(tmp_path, ranks=2, request_timeout=0.1) as secret:
        plan = Plan(
            connection=load(secret), workload=LOAD, engines=1, seconds=0.1, max_bytes=1 << 20
        )
        ours, theirs = run_module.multiprocessing.Pipe()
        theirs.send(None)
        results = run_module._collect(plan, [ours], stop=threading.Event(), progress=None)
        assert isinstance(theirs.recv(), float), "when to begin"
    assert results.ended_by == "Unfinished"
    assert [rank.rank for rank in results.ranks] == [0, 1]


def test_a_name_server_that_does_not_answer_costs_its_time_and_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    asked: list[str] = []

    def slow(host: str, port: int, **_: Any) -> Any:
        asked.append(host)
        answers.wait(60)
        return [(0, 0, 0, "", ("192.0.2.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    resolver = Resolver("rank-0.models", 6379)
    try:
        for _ in range(3):
            with pytest.raises(Failed, match=r"rank-0\.models: no address within 0\.05 s") as said:
                resolver.address(seconds=0.05)
            assert said.value.kind is Kind.TIMEOUT
        assert len(asked) == 1
    finally:
        answers.set()
    assert resolver.address(seconds=30) == ("192.0.2.1", 6379)
    assert resolver.address(seconds=30) == ("192.0.2.1", 6379)
    assert len(asked) >= 2, "it is looked up anew"


@pytest.mark.parametrize("host", ["a" * 64 + ".models", "rank..models"])
def test_a_name_that_cannot_be_one_is_an_outage_of_its_rank(host: str, tmp_path: Path) -> None:
    with silent_ranks(tmp_path, ranks=2, request_timeout=0.2) as secret:
        document = json.loads((secret / "connection.json").read_text())
        document["ranks"][1]["host"] = host
        (secret / "connection.json").write_text(json.dumps(document))
        results = drive(secret, seconds=0.3)
    kinds = {outage.rank: outage.kind for outage in results.outages}
    assert kinds == {0: Kind.TIMEOUT, 1: Kind.OTHER}


def test_a_rank_that_ends_between_failure_and_mending_ends(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with silent_ranks(tmp_path, ranks=1, request_timeout=0.2) as secret:
        connection = load(secret)
        rank = Rank(connection, connection.ranks[0], writer="test", budget=Budget(1))
        rank.end()
        rank.start()
        rank.close(deadline=time.monotonic() + 20)
    assert set(threading.enumerate()) <= before


def test_no_representation_of_a_connection_has_its_token(tmp_path: Path) -> None:
    with silent_ranks(tmp_path, ranks=1, request_timeout=1.0) as secret:
        assert "kvtt-ab" not in repr(load(secret))


def test_a_request_that_waits_for_the_worker_keeps_no_keys(
    local_tier: NewLocalTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[object] = []
    load_one = Engine._load

    def keep(engine: Engine, *arguments: Any) -> Any:
        loaded = load_one(engine, *arguments)
        held.append(loaded)
        return loaded

    monkeypatch.setattr(Engine, "_load", keep)
    long = replace(LOAD, prompt_tokens=1 << 17, prefix_tokens=0)

    def some(_: Engine, watch: Watch) -> None:
        watch.until(lambda: held, what="a loaded request")

    drive(local_tier().secret, workload=long, during=some)
    store: tuple[int, ...] = held[0].store  # type: ignore[attr-defined]
    assert [bits.bit_count() for bits in store] == [512, 512], "all chunks lack on both ranks"
    assert sum(map(sys.getsizeof, store)) < 300


def test_an_overloaded_engine_looks_up_no_more_than_it_may_keep(
    local_tier: NewLocalTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LOADED_AHEAD", 3)
    tier = local_tier()
    tier.change(prefillRate=[{"tokens": 0, "tokensPerSecond": 1}])
    looked_up: list[int] = []
    load_one = Engine._load

    def count(engine: Engine, number: int, *arguments: Any) -> Any:
        looked_up.append(number)
        return load_one(engine, number, *arguments)

    monkeypatch.setattr(Engine, "_load", count)
    results = drive(tier.secret, seconds=2.0, workload=replace(LOAD, rate=100))
    assert results.requests > 50
    # The worker has one, and never gets done with it.
    assert looked_up == [0, 1, 2, 3]


def test_stores_that_are_too_far_behind_are_dropped_and_counted(
    local_tier: NewLocalTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "STORES_AHEAD", 1)
    tier = local_tier()
    tier.change(prefillRate=[{"tokens": 0, "tokensPerSecond": 1e9}])
    long = replace(LOAD, rate=200, prompt_tokens=1 << 14, prefix_tokens=0)

    def behind(engine: Engine, watch: Watch) -> None:
        watch.until(lambda: engine.stores_dropped > 2, what="dropped stores")

    results = drive(tier.secret, workload=long, during=behind)
    assert 2 < results.stores_dropped < len(results.completed)


def test_figures_of_engines_that_told_nothing_are_nothing(tmp_path: Path) -> None:
    with silent_ranks(tmp_path, ranks=3, request_timeout=1.0) as secret:
        plan = Plan(connection=load(secret), workload=LOAD, engines=1, seconds=1, max_bytes=1)
        results = Gathered(plan, begin=0.0).results(seconds=1.0, ended_by="Unfinished")
    assert [rank.rank for rank in results.ranks] == [0, 1, 2]
    assert len(results.reading) == 3
