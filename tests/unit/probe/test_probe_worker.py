"""A probe of real ranks: what it finds, what it takes, and what it leaves."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from narrow_link import NarrowLink
from probed_ranks import SIZE, NewRanks, Ranks
from relays import relay

from kvtier.generation.acl import key_prefix
from kvtier.probe.config import ONCE
from kvtier.probe.result import MOST_BYTES, ProbeResult, parse, to_json
from kvtier.probe.worker import deadline_seconds, run_probe

OVERHEAD = 1.05
"""What commands, answers and INFO add to the values' own bytes."""


def measured(result: ProbeResult) -> ProbeResult:
    assert not result.troubles, result.troubles
    return result


def test_all_ranks_are_read_and_nothing_stays(ranks: Ranks) -> None:
    found = measured(run_probe(ranks.config(node="gpu-1")))
    assert [each.rank for each in found.ranks] == [0, 1]
    assert all(each.bytes_per_second > 1e6 for each in found.ranks)
    assert all(0 < each.round_trip <= each.round_trip_p99 < 1 for each in found.ranks)
    assert all(each.cpu_seconds > 0 for each in found.ranks)
    assert found.node == "gpu-1"
    assert found.link == 2 * min(each.bytes_per_second for each in found.ranks)
    assert [ranks.keys(0), ranks.keys(1)] == [[], []]
    text = to_json(found)
    assert len(text) <= MOST_BYTES
    assert isinstance(parse(text), ProbeResult)


def test_no_more_bytes_cross_the_network_than_it_may_move(ranks: Ranks) -> None:
    with ExitStack() as stack:
        relays = [stack.enter_context(relay(server.port)) for server in ranks.servers]
        config = ranks.config(ports=[each.port for each in relays], max_bytes=16 << 20)
        found = measured(run_probe(config))
    crossed = sum(each.to_server + each.to_client for each in relays)
    assert crossed <= OVERHEAD * config.max_bytes
    assert found.bytes_moved <= crossed
    # It uses what it may, or this would bound nothing.
    assert found.bytes_moved > config.max_bytes / 2


def test_servers_send_no_more_than_it_may_move(ranks: Ranks) -> None:
    config = ranks.config(max_bytes=16 << 20)
    before = [ranks.info(rank, "stats")["total_net_output_bytes"] for rank in (0, 1)]
    measured(run_probe(config))
    after = [ranks.info(rank, "stats")["total_net_output_bytes"] for rank in (0, 1)]
    assert sum(after) - sum(before) <= OVERHEAD * config.max_bytes


def test_with_the_least_it_may_be_given_each_value_crosses_three_times(ranks: Ranks) -> None:
    config = ranks.config()
    with ExitStack() as stack:
        relays = [stack.enter_context(relay(server.port)) for server in ranks.servers]
        least = ranks.config(ports=[r.port for r in relays], max_bytes=config.least_bytes)
        found = run_probe(least)
    # With so few bytes one rank may be done before the other begins, or gives the first one.
    why = "".join(each.text for each in found.troubles)
    assert found.link or "not read at the same time" in why or "not one byte" in why, why
    values = sum(each.to_server + each.to_client for each in relays) / SIZE
    assert values <= OVERHEAD * ONCE * 2 * 2 + 1


@pytest.mark.parametrize("connections", [1, 3])
def test_a_rank_sees_no_more_connections_than_it_is_told_of(
    connections: int, make_ranks: NewRanks
) -> None:
    ranks = make_ranks(2)
    with ExitStack() as stack:
        relays = [stack.enter_context(relay(server.port)) for server in ranks.servers]
        ports = [each.port for each in relays]
        measured(run_probe(ranks.config(ports=ports, connections=connections)))
    assert [each.most_open for each in relays] == [connections, connections]


def test_ranks_that_share_a_narrow_link_unevenly_get_all_of_it(make_ranks: NewRanks) -> None:
    """As in a hit, whose slower rank has the link to itself once the faster one is done."""
    ranks, link = make_ranks(2), NarrowLink(bytes_per_second=8e6)
    with ExitStack() as stack:
        ports = [
            stack.enter_context(relay(server.port, alter=link.through(favoured=favoured))).port
            for server, favoured in zip(ranks.servers, (True, False), strict=True)
        ]
        found = measured(run_probe(ranks.config(ports=ports, seconds=3.0)))
    moved = sum(each.bytes_per_second for each in found.ranks)
    assert found.link is not None
    assert found.link > 0.85 * moved


def test_its_user_alone_logs_in(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    seen: set[str] = set()
    with seeing(ranks, seen):
        measured(run_probe(ranks.config(seconds=1.0, max_bytes=4 << 30)))
    assert "probe" in seen
    assert seen <= {"probe", "operator"}


@contextmanager
def seeing(ranks: Ranks, users: set[str]) -> Iterator[None]:
    """Look who is connected, all the time."""
    done = threading.Event()

    def look() -> None:
        with ranks.operator(0) as client:
            while not done.wait(0.02):
                users.update(each["user"] for each in client.client_list())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()


def test_it_ends_when_its_seconds_are_over(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    config = ranks.config(seconds=0.5, max_bytes=1 << 38)
    begun = time.monotonic()
    found = measured(run_probe(config))
    assert time.monotonic() - begun < deadline_seconds(config)
    assert found.seconds < 0.6
    assert found.bytes_moved < config.max_bytes / 10


def test_values_have_a_time_to_live_while_it_reads(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    config = ranks.config(seconds=5.0, max_bytes=1 << 38)
    stop = threading.Event()
    results: list[ProbeResult] = []
    probing = threading.Thread(target=lambda: results.append(run_probe(config, stop=stop)))
    probing.start()
    try:
        fields = wait_for_keys(ranks)
    finally:
        stop.set()
        probing.join()
    assert fields["expires"] == fields["keys"]
    assert ranks.keys(0) == []


def wait_for_keys(ranks: Ranks) -> dict[str, int]:
    deadline = time.monotonic() + 60
    with ranks.operator(0) as client:
        while time.monotonic() < deadline:
            found: dict[str, dict[str, int]] = client.info("keyspace")
            if found.get("db0", {}).get("keys", 0) >= 2:
                return found["db0"]
            time.sleep(0.01)
    raise AssertionError("it stored nothing")


def test_a_stop_ends_it_early_with_a_reason_and_leaves_nothing(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)
    config = ranks.config(seconds=60.0, max_bytes=1 << 40)
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    begun = time.monotonic()
    found = run_probe(config, stop=stop)
    assert time.monotonic() - begun < 30
    assert [each.text for each in found.troubles] == ["the probe was stopped"]
    assert [ranks.keys(0), ranks.keys(1)] == [[], []]


def test_a_full_rank_loses_no_more_than_two_chunks_to_it(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1, maxmemory="32mb")
    fill(ranks)
    before = ranks.info(0, "stats")["evicted_keys"]
    config = ranks.config(value_bytes=1 << 20)
    measured(run_probe(config))
    assert ranks.info(0, "stats")["evicted_keys"] - before <= 2 + 2


def fill(ranks: Ranks) -> None:
    """Store chunks as an engine does until the rank evicts."""
    token = ranks.record.current.token
    prefix = key_prefix(ranks.record.current.id, 0)
    value = bytes(1 << 20)
    with ranks.operator(0) as client:
        client.connection_pool.connection_kwargs |= {"username": token, "password": token}
        client.connection_pool.disconnect()
        for number in range(64):
            client.set(f"{prefix}@{number}", value)
    assert ranks.info(0, "stats")["evicted_keys"] > 0


def test_two_probes_at_once_do_not_mix_up_their_values(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    results: list[ProbeResult] = []
    config = ranks.config(seconds=1.0)
    probes = [threading.Thread(target=lambda: results.append(run_probe(config))) for _ in range(2)]
    for each in probes:
        each.start()
    for each in probes:
        each.join()
    assert all(measured(each).link for each in results)
    assert ranks.keys(0) == []


def test_a_rank_behind_a_slow_link_is_the_pace_of_all(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)
    pace = 1e6

    def slowly(data: bytes, _: int) -> bytes:
        time.sleep(len(data) / pace)
        return data

    with relay(ranks.servers[1].port, alter=slowly) as slow:
        config = ranks.config(
            ports=[ranks.servers[0].port, slow.port],
            connections=1,
            seconds=2.0,
            max_bytes=1 << 34,
        )
        found = measured(run_probe(replace(config, value_bytes=256 << 10)))
    rates = [each.bytes_per_second for each in found.ranks]
    assert 0.8 * pace < rates[1] < 1.1 * pace
    assert rates[0] >= rates[1]
    assert found.link == 2 * rates[1]
    # As far as an engine would be: it waits for the slower one.
    assert found.ranks[0].bytes_timed < found.ranks[1].bytes_timed + (2 << 20)
    assert not found.lower_bound, "the network was the limit, not this machine"
