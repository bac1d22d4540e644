"""The report of a run whose figures are known."""

import re
from pathlib import Path
from typing import Any

import pytest
from local_tier import NewLocalTier

from kvtier.loadtest import report
from kvtier.loadtest.connection import Connection, load
from kvtier.loadtest.measures import Completed, HitTimes, Outage, RankMeasures
from kvtier.loadtest.report import Results
from kvtier.store.failure import Kind

BEGIN = 1_800_000_000.0
DOCS = Path(__file__).parents[3] / "docs" / "loadtest.md"


@pytest.fixture
def connection(local_tier: NewLocalTier) -> Connection:
    return load(local_tier().secret)


SLOW = HitTimes(fetch=0.3, recompute=0.1)
QUICK = HitTimes(fetch=0.1, recompute=0.2)


def results(**changes: Any) -> Results:
    fields: dict[str, Any] = {
        "begin": BEGIN,
        "seconds": 3.02,
        "engines": 2,
        "requests": 5,
        "ended_by": "Duration",
        "stores_dropped": 0,
        "completed": [
            Completed(at=BEGIN + 0.2, ttft=0.1, tokens=1000, hit_tokens=0),
            Completed(at=BEGIN + 0.9, ttft=0.4, tokens=1000, hit_tokens=512, hit=SLOW),
            Completed(at=BEGIN + 2.5, ttft=0.2, tokens=1000, hit_tokens=1000, hit=QUICK),
            Completed(at=BEGIN + 3.01, ttft=0.3, tokens=1000, hit_tokens=0),
        ],
        "errors": [BEGIN + 1.5, BEGIN + 1.6],
        "ranks": [
            RankMeasures(rank=0, bytes_read=3000, bytes_written=10, answered=True),
            RankMeasures(rank=1, bytes_read=1000, errors=2, stalls=1, stall_seconds=0.25),
        ],
        "reading": [0.5, 0.0],
        "outages": [
            Outage(rank=1, kind=Kind.TIMEOUT, reason="no answer", begin=BEGIN + 1.5, end=BEGIN + 2),
            Outage(rank=1, kind=Kind.REFUSED, reason="nobody", begin=BEGIN + 2.5),
        ],
    }
    return Results(**{**fields, **changes})


def test_figures_of_all_requests(connection: Connection) -> None:
    found = report.document(connection, results())
    assert (found["tier"], found["striping"]) == ("models/chat", "Shard")
    assert (found["engines"], found["endedBy"], found["seconds"]) == (2, "Duration", 3.02)
    assert (found["requests"], found["completed"]) == (5, 4)
    assert found["ttftSeconds"] == {"p50": 0.2, "p90": 0.4, "p99": 0.4, "max": 0.4, "mean": 0.25}
    assert found["tokens"] == {"requested": 4000, "hit": 1512}
    assert found["hitRate"] == 0.378
    assert found["bytes"] == {"read": 4000, "written": 10}


def test_hits_are_timed_apart_from_misses(connection: Connection) -> None:
    found = report.document(connection, results())
    assert found["fetchSeconds"] == {"p50": 0.1, "p90": 0.3, "p99": 0.3, "max": 0.3, "mean": 0.2}
    assert found["recomputeSeconds"]["mean"] == 0.15
    assert "a hit      p50 100 ms, to recompute it p50 100 ms" in report.table(found)


def test_a_ranks_bandwidth_is_over_the_time_in_which_it_was_read(connection: Connection) -> None:
    first, second = report.document(connection, results())["ranks"]
    assert first["bytesPerSecond"] == 6000
    assert second["bytesPerSecond"] is None
    assert (second["errors"], second["stalls"], second["stallSeconds"]) == (2, 1, 0.25)


def test_each_second_has_what_was_completed_in_it(connection: Connection) -> None:
    seconds = report.document(connection, results())["timeline"]
    assert [each["at"] for each in seconds] == [
        f"2027-01-15T08:00:0{number}.000Z" for number in range(3)
    ]
    assert [each["requests"] for each in seconds] == [2, 0, 2]
    assert [each["hitRate"] for each in seconds] == [0.256, None, 0.5]
    assert [each["ttftP99Seconds"] for each in seconds] == [0.4, None, 0.3]
    assert [each["errors"] for each in seconds] == [0, 2, 0]


def test_an_outage_that_lasts_has_no_end(connection: Connection) -> None:
    assert report.document(connection, results())["outages"] == [
        {
            "rank": 1,
            "kind": "timeout",
            "reason": "no answer",
            "from": "2027-01-15T08:00:01.500Z",
            "to": "2027-01-15T08:00:02.000Z",
        },
        {
            "rank": 1,
            "kind": "refused",
            "reason": "nobody",
            "from": "2027-01-15T08:00:02.500Z",
            "to": None,
        },
    ]


def test_a_run_without_a_request_has_a_report(connection: Connection) -> None:
    found = report.document(connection, results(completed=[], requests=0, seconds=0.4))
    assert set(found["ttftSeconds"].values()) == {None}
    assert found["hitRate"] is None
    assert set(found["fetchSeconds"].values()) == {None}
    assert "a hit" not in report.table(found)
    assert len(found["timeline"]) == 1
    assert "0 came, 0 completed" in report.table(found)


@pytest.mark.parametrize("kind", ["corrupt", "foreign", "stale"])
def test_a_wrong_byte_fails_the_run(kind: str) -> None:
    ranks = [RankMeasures(rank=0, answered=True, **{kind: 1})]
    assert report.exit_code(results(ranks=ranks)) == 1


def test_a_run_fails_if_no_rank_ever_answered_and_not_if_one_did() -> None:
    assert report.exit_code(results()) == 0
    assert report.exit_code(results(ranks=[RankMeasures(rank=0), RankMeasures(rank=1)])) == 1


def test_a_run_of_which_an_engine_did_not_end_fails() -> None:
    assert report.exit_code(results(ended_by=report.UNFINISHED)) == 1


def test_stores_that_were_dropped_are_told(connection: Connection) -> None:
    found = report.document(connection, results(stores_dropped=3))
    assert found["storesDropped"] == 3
    assert "not stored what 3 of them lacked" in report.table(found)
    assert "not stored" not in report.table(report.document(connection, results()))


def test_the_table_names_each_rank_each_outage_and_what_was_wrong(connection: Connection) -> None:
    ranks = [
        RankMeasures(rank=0, bytes_read=3000, answered=True, stale=2),
        RankMeasures(rank=1, bytes_read=1000),
    ]
    text = report.table(report.document(connection, results(ranks=ranks)))
    assert "wrong      2 stale" in text
    assert re.search(r"rank 1 refused from \S+Z to the end: nobody", text)
    assert re.search(r"^ +0 +2.93 KiB +0 B +0.00 GB/s", text, re.MULTILINE)
    assert re.search(r"^ +1 +1,?000 B +0 B +- ", text, re.MULTILINE)


def test_progress_tells_of_the_last_whole_second_and_of_what_is_down() -> None:
    found = report.progress(results(seconds=2.7))
    assert (found["at"], found["errors"]) == ("2027-01-15T08:00:01.000Z", 2)
    assert found["down"] == [1]
    assert found["wrong"] == {"corrupt": 0, "foreign": 0, "stale": 0}


def test_every_field_of_the_report_is_documented(connection: Connection) -> None:
    text = DOCS.read_text("utf-8")

    def names(value: Any, path: str = "") -> list[str]:
        if isinstance(value, dict):
            return [
                name
                for key, each in value.items()
                for name in names(each, f"{path}.{key}".strip("."))
            ]
        if isinstance(value, list):
            return names(value[0], f"{path}[]")
        return [path]

    fields = names(report.document(connection, results()))
    assert len(fields) > 30
    missing = [name for name in fields if f"`{name}`" not in text]
    assert not missing


def test_outages_of_a_rank_and_kind_are_one_line(connection: Connection) -> None:
    begin = 1_800_000_000.0
    outages = [
        Outage(rank=1, kind=Kind.TIMEOUT, reason="late", begin=begin + at, end=begin + at + length)
        for at, length in ((0, 0.25), (2, 1.5), (4, 0.5))
    ] + [Outage(rank=1, kind=Kind.REFUSED, reason="nobody", begin=begin + 5)]
    text = report.table(report.document(connection, results(outages=outages)))
    assert [line for line in text.splitlines() if line.startswith("  rank ")] == [
        "  rank 1 refused from 2027-01-15T08:00:05.000Z to the end: nobody",
        "  rank 1 timeout 3 times from 2027-01-15T08:00:00.000Z to 2027-01-15T08:00:04.500Z, 1.5 s "
        "at most: late",
    ]


def in_vain(connection: Connection, reason: str) -> str | None:
    outages = [Outage(rank=0, kind=Kind.OTHER, reason=reason, begin=1_800_000_000.0)]
    ranks = [RankMeasures(rank=0), RankMeasures(rank=1)]
    return report.nothing_reached(connection, results(ranks=ranks, outages=outages))


def test_a_name_that_is_not_resolved_is_told_with_where_to_run(connection: Connection) -> None:
    host = connection.ranks[0].host
    said = in_vain(connection, f"{host}: Name or service not known")
    assert said is not None
    assert said.startswith(
        f"no rank ever answered: {host} was not resolved (Name or service not known)"
    )
    assert "run it there, as the pod in docs/loadtest.md" in said


def test_without_any_answer_the_first_reason_is_told(connection: Connection) -> None:
    host = connection.ranks[0].host
    assert in_vain(connection, "connection refused") == (
        f"no rank ever answered: rank 0 ({host}): connection refused"
    )
    assert report.nothing_reached(connection, results()) is None
