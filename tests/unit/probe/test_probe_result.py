"""What a probe says, through 4,096 bytes and back, and what it says of a link."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtier.breakeven.assessment import Evidence
from kvtier.probe.result import (
    CLIENT_EFFICIENCY,
    MOST_BYTES,
    ProbeResult,
    RankMeasure,
    RankTrouble,
    figures,
    parse,
    to_json,
    troubles,
)
from kvtier.redact import new_token

AT = "2026-11-30T01:02:03Z"


def measure(rank: int = 0, rate: float = 1e9, **fields: float) -> RankMeasure:
    known = {"round_trip": 50e-6, "round_trip_p99": 90e-6, "cpu_seconds": 0.25, "busy": 0.25}
    return RankMeasure(
        rank=rank, bytes_per_second=rate, bytes_timed=int(rate), **{**known, **fields}
    )


def result(*ranks: RankMeasure, throttled: float = 0.0) -> ProbeResult:
    return ProbeResult(
        at=AT, node="gpu-1", seconds=1.0, throttled=throttled, bytes_moved=5 << 30, ranks=ranks
    )


def read(text: str) -> ProbeResult:
    found = parse(text)
    assert isinstance(found, ProbeResult), found
    return found


def test_the_link_is_all_ranks_at_the_pace_of_the_slowest() -> None:
    assert result(measure(0, 3e9), measure(1, 1e9), measure(2, 2e9)).link == 3e9


def test_the_round_trip_is_that_of_the_farthest_rank() -> None:
    assert result(measure(0, round_trip=1e-3), measure(1, round_trip=2e-3)).round_trip == 2e-3


def test_a_client_gets_all_of_a_network_that_leaves_its_cpu_free() -> None:
    idle = result(measure(0, 1e9, cpu_seconds=0.01))
    assert idle.client == idle.link


def test_a_client_whose_cpu_is_the_limit_gets_less_than_a_plain_socket() -> None:
    busy = result(measure(0, 1e9, cpu_seconds=1.0), measure(1, 1e9, cpu_seconds=1.0))
    assert busy.client == pytest.approx(2e9 * CLIENT_EFFICIENCY[False])
    # What TLS takes of a CPU, the probe pays as well.
    assert replace(busy, tls=True).client == pytest.approx(2e9 * CLIENT_EFFICIENCY[True])
    assert 0 < CLIENT_EFFICIENCY[False] < CLIENT_EFFICIENCY[True] < 1


@pytest.mark.parametrize(
    ("ranks", "throttled", "bound"),
    [
        ([measure(0, busy=0.5)], 0.0, False),
        ([measure(0, busy=0.95)], 0.0, True),
        ([measure(0, busy=0.5)], 0.5, True),
        # The fast one had no CPU left, but it is not what a prompt waits for.
        ([measure(0, 1e8, busy=0.1), measure(1, 1e9, busy=1.0)], 0.0, False),
        ([measure(0, 1e9, busy=0.1), measure(1, 1.05e9, busy=1.0)], 0.0, True),
    ],
)
def test_it_is_a_lower_bound_if_its_own_cpu_was_the_limit(
    ranks: list[RankMeasure], throttled: float, bound: bool
) -> None:
    found = result(*ranks, throttled=throttled)
    assert found.lower_bound is bound
    link = figures(found, domain="zone")
    assert link is not None
    assert link.lower_bound is bound


def test_the_verdict_gets_the_client_s_figure_with_node_time_and_slowest_rank() -> None:
    found = result(measure(0, 1e9, cpu_seconds=1.0), measure(1, 2e9, cpu_seconds=2.0))
    link = figures(found, domain="zone")
    assert link is not None
    assert link.domain == "zone"
    assert link.bytes_per_second == found.client == pytest.approx(2e9 * CLIENT_EFFICIENCY[False])
    assert link.slowest_rank_bytes_per_second == pytest.approx(1e9 * CLIENT_EFFICIENCY[False])
    assert (link.evidence, link.at, link.node) == (Evidence.PROBED, AT, "gpu-1")
    assert link.round_trip_seconds == 50e-6


def test_without_figures_there_is_no_link() -> None:
    failed = replace(result(), troubles=(RankTrouble((0,), "down"),))
    assert failed.link is failed.client is failed.round_trip is failed.slowest is None
    assert figures(failed, domain="zone") is None
    assert figures(result(measure(0, 0.0)), domain="zone") is None


extremes = st.builds(
    measure,
    rank=st.just(0),
    rate=st.floats(0, 9e11),
    round_trip=st.floats(0, 10),
    round_trip_p99=st.floats(0, 10),
    cpu_seconds=st.floats(0, 3600),
    busy=st.floats(0, 1),
)


@settings(deadline=None)
@example([measure(0, 1e9, busy=0.125)], 0.0, True)
@given(st.lists(extremes, min_size=1, max_size=64), st.floats(0, 1), st.booleans())
def test_figures_come_through_the_message_whatever_they_are(
    drawn: list[RankMeasure], throttled: float, tls: bool
) -> None:
    sent = result(
        *(replace(each, rank=63 - place) for place, each in enumerate(drawn)), throttled=throttled
    )
    sent = replace(sent, tls=tls)
    text = to_json(sent)
    assert len(text) <= MOST_BYTES
    assert text.isascii()
    got = read(text)
    assert (got.at, got.node, got.bytes_moved) == (sent.at, sent.node, sent.bytes_moved)
    assert got.tls is tls
    for before, after in zip(sent.ranks, got.ranks, strict=True):
        assert after.rank == before.rank
        assert after.bytes_per_second == pytest.approx(before.bytes_per_second, abs=501)
        assert after.bytes_timed == pytest.approx(before.bytes_timed, abs=501)
        assert after.round_trip == pytest.approx(before.round_trip, abs=0.51e-6)
        assert after.round_trip_p99 == pytest.approx(before.round_trip_p99, abs=0.51e-6)
        assert after.cpu_seconds == pytest.approx(before.cpu_seconds, abs=0.51e-3)
        assert after.busy == pytest.approx(before.busy, abs=0.0051)


def test_a_message_of_64_ranks_with_the_longest_figures_fits() -> None:
    longest = [
        measure(rank, 999_999_999_999, round_trip=9.999999, round_trip_p99=9.999999)
        for rank in range(64)
    ]
    longest = [replace(each, cpu_seconds=9999.999, busy=1.0) for each in longest]
    assert 3000 < len(to_json(replace(result(*longest), node="n" * 253))) <= MOST_BYTES


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 63), st.text(max_size=400), min_size=1, max_size=64))
def test_troubles_come_through_the_message_whatever_they_say(texts: dict[int, str]) -> None:
    told = troubles(texts)
    assert {rank for each in told for rank in each.ranks} == set(texts)
    sent = replace(result(), troubles=told)
    text = to_json(sent)
    assert len(text) <= MOST_BYTES
    assert len(read(text).troubles) == len(told)


def test_ranks_with_one_trouble_are_told_of_once_and_no_token_is() -> None:
    token = new_token()
    assert troubles({0: f"no {token}", 1: "down", 2: "down"}) == (
        RankTrouble((0,), "no <redacted>"),
        RankTrouble((1, 2), "down"),
    )


def test_a_person_reads_the_figures_in_the_message() -> None:
    document = json.loads(to_json(result(measure(0, 1e9, busy=1.0), measure(1, 2e9))))
    assert document["link"] == 2_000_000_000
    assert document["lowerBound"] is True
    assert document["ranks"]["kilobytesPerSecond"] == [1_000_000, 2_000_000]


GOOD = json.loads(to_json(result(measure(0), measure(1))))


def changed(**fields: object) -> str:
    return json.dumps({**GOOD, **fields})


def with_column(name: str, values: object) -> str:
    return changed(ranks={**GOOD["ranks"], name: values})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no result"),
        ("", "no result"),
        ("Killed", "no JSON"),
        ("x" * 5000, "longer than 4096"),
        ("[" * 4000, "no JSON"),
        ("null", "not usable"),
        ("[]", "not usable"),
        ("{}", "has no 'version'"),
        (changed(version=2), "version 2"),
        (changed(at="yesterday"), "yesterday"),
        (changed(at=None), "None"),
        (changed(node=5), "no text"),
        (changed(bytesMoved=-1), "-1"),
        (changed(bytesMoved=True), "True"),
        (changed(bytesMoved=10**400), "not usable"),
        (changed(seconds=float("nan")), "out of range"),
        (changed(seconds=10**40), "out of range"),
        (changed(tls=1), "neither true nor false"),
        (changed(ranks=[1]), "not usable"),
        (changed(ranks={}), "either ranks or troubles"),
        (changed(ranks={"rank": [0]}), "has no"),
        (changed(troubles=[{"ranks": [0], "text": "x"}]), "either ranks or troubles"),
        (changed(troubles=None), "not usable"),
        (with_column("rank", [0]), "fit together"),
        (with_column("rank", [0, 0]), "one number"),
        (with_column("rank", [0, 64]), "64"),
        (with_column("rank", "01"), "no table"),
        (with_column("kilobytesPerSecond", [1, "2"]), "no number"),
        (with_column("kilobytesPerSecond", [1, math.inf]), "out of range"),
        (with_column("busyPercent", [1, -1]), "out of range"),
    ],
)
def test_what_is_no_result_is_one_line_that_says_why(text: str | None, says: str) -> None:
    reason = parse(text)
    assert isinstance(reason, str)
    assert says in reason
    assert "\n" not in reason
    assert len(reason) < 200


@settings(deadline=None)
@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(parse(text), str)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values))
def test_no_document_makes_it_raise(fields: dict[str, object]) -> None:
    assert isinstance(parse(changed(**fields)), ProbeResult | str)


@settings(deadline=None)
@given(st.sampled_from(sorted(GOOD["ranks"])), json_values)
def test_no_column_makes_it_raise(name: str, values: object) -> None:
    assert isinstance(parse(with_column(name, values)), ProbeResult | str)
