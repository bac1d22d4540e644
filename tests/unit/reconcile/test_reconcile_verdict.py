"""The reconciler on fakes: what it makes of a verdict, and what it never stops for one."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest
from tier_harness import KEY, Operator, spec

from kvtier.api import reasons
from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.cluster.protocol import STATEFULSET, TIER

FAST = LinkFigures(
    domain="zone",
    bytes_per_second=3e9,
    round_trip_seconds=50e-6,
    evidence=Evidence.PROBED,
    at="2026-11-30T01:00:00Z",
    node="node-1",
    slowest_rank_bytes_per_second=1.5e9,
)
B_STAR = 2 * 2 * 2 * 64 * 2 * 5000
"""Of the small tier: 1,024 bytes a token, 5,000 tokens/s."""


def tier(**placement: Any) -> dict[str, Any]:
    """The small tier with a T0 of 20 ms: it takes 100 tokens to make up for it."""
    document = spec()
    document["pool"] |= {"hitLatency": "10ms", "hitEngineTime": "10ms"}
    document["workload"] = {"hitTokens": [{"quantile": "1", "tokens": 8192}]}
    document["placement"] = {
        "links": [{"domain": "zone", "bitsPerSecond": "10G", "roundTrip": "50us"}],
        **placement,
    }
    return document


def hopeless(**placement: Any) -> dict[str, Any]:
    """T0 of two seconds, and no prompt above 8,192 tokens (1.6 s)."""
    document = tier(**placement)
    document["pool"] |= {"hitLatency": "1s", "hitEngineTime": "1s"}
    return document


async def measured(operator: Operator, link: LinkFigures) -> None:
    """A probe has ended."""
    operator.reconciler.memory.of(KEY).link = link
    operator.queue.add(KEY)
    await operator.settle()


async def test_a_link_that_the_declared_load_fills_earns_nothing(operator: Operator) -> None:
    """8,192 tokens are 8.4 MB: 357 of them fill 3 GB/s. Without a load such a hit pays."""
    busy = tier()
    busy["workload"] |= {"requestsPerSecond": "400"}
    operator.apply(busy)
    await operator.settle()
    await measured(operator, FAST)
    earning = operator.condition("EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("False", "LinkQueueUnstable")
    assert "grows without end. On an idle engine: Pays." in earning["message"]


async def test_block_makes_nothing_where_no_link_would_help(operator: Operator) -> None:
    operator.apply(hopeless(onReject="Block"))
    await operator.settle()
    assert [request.verb for request in operator.cluster.writes] == ["apply_status"]
    store = operator.condition("StoreReady")
    assert (store["status"], store["reason"]) == ("False", "PlacementRejected")
    assert "NoPromptLongEnough" in store["message"]
    assert "10,001 tokens" in store["message"]
    assert operator.condition("PlacementAccepted")["status"] == "False"
    assert operator.condition("PlacementAccepted")["reason"] == "NoPromptLongEnough"
    assert operator.condition("Ready")["status"] == "False"
    assert operator.status()["ranks"] == "0/2"
    assert operator.recorder.reasons() == ["NoPromptLongEnough"]


async def test_a_blocked_tier_is_written_no_more(operator: Operator) -> None:
    operator.apply(hopeless(onReject="Block"))
    await operator.settle()
    writes = len(operator.cluster.writes)
    await operator.resync()
    operator.restart()
    operator.queue.add(KEY, dirty=frozenset({TIER.kind}))
    await operator.settle()
    assert len(operator.cluster.writes) == writes


async def test_a_blocked_tier_is_made_once_it_can_pay(operator: Operator) -> None:
    operator.apply(hopeless(onReject="Block"))
    await operator.settle()
    operator.apply(tier(onReject="Block"))
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"
    assert operator.condition("PlacementAccepted")["status"] == "True"
    assert "Created" in operator.recorder.reasons()


async def test_warn_makes_it_and_says_so(operator: Operator) -> None:
    operator.apply(hopeless())
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"
    assert operator.condition("PlacementAccepted")["reason"] == "NoPromptLongEnough"
    assert operator.recorder.reasons().count("NoPromptLongEnough") == 1


async def test_block_touches_no_tier_that_runs(operator: Operator) -> None:
    operator.apply(tier(onReject="Block"))
    await operator.settle()
    before = operator.statefulsets()
    operator.apply(hopeless(onReject="Block"))
    await operator.settle()
    assert operator.statefulsets() == before
    assert operator.condition("PlacementAccepted")["status"] == "False"
    assert operator.condition("StoreReady")["status"] == "True"
    # And it is repaired as any other.
    operator.cluster.remove(STATEFULSET, KEY[0], "demo-r1")
    await operator.settle()
    assert operator.statefulsets().keys() == before.keys()


async def test_a_link_that_was_declared_gives_no_verdict(operator: Operator) -> None:
    operator.apply(tier())
    await operator.settle()
    assert operator.status()["verdict"] == "Unknown"
    assert "measured" not in operator.status(), "a declared ratio beside 'not measured' misleads"
    earning = operator.condition("EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("Unknown", "NotMeasured")
    assert earning["message"].startswith("Not measured. By the declared figures Pays: ")
    accepted = operator.condition("PlacementAccepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "Accepted")
    assert "No check found an error. By declared figures" in accepted["message"]


async def test_a_link_below_break_even_is_an_error_by_declared_figures_too(
    operator: Operator,
) -> None:
    slow = {"domain": "zone", "bitsPerSecond": "40M", "roundTrip": "50us"}
    operator.apply(tier(links=[slow], onReject="Block"))
    await operator.settle()
    assert operator.condition("PlacementAccepted")["reason"] == "BelowBreakEven"
    assert operator.condition("Ready")["status"] == "True", "only a link decides this"
    assert operator.status()["verdict"] == "Unknown"


async def test_without_a_link_or_t0_placement_is_open(operator: Operator) -> None:
    operator.apply(spec())
    await operator.settle()
    for name in ("PlacementAccepted", "EarningItsKeep"):
        found = operator.condition(name)
        assert (found["status"], found["reason"]) == ("Unknown", "LinkNotDeclared")


async def test_a_measured_link_gives_the_verdict(operator: Operator) -> None:
    operator.apply(tier())
    await operator.settle()
    await measured(operator, FAST)
    assert operator.status()["verdict"] == "Pays"
    earning = operator.condition("EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("True", "Pays")
    assert "slowest rank x 2 gives 3 GB/s, measured at 2026-11-30T01:00:00Z" in earning["message"]
    assert operator.status()["measured"] == {
        "bytesPerSecond": 3_000_000_000,
        "roundTripSeconds": 0.00005,
        "evidence": "Probed",
        "at": "2026-11-30T01:00:00Z",
        "node": "node-1",
        "ratio": 590.0,
    }
    event = operator.recorder.events[-1]
    assert (event.type, event.reason) == ("Normal", reasons.VERDICT_CHANGED)
    assert event.message.startswith("Pays (was Unknown): ")


async def test_a_verdict_is_written_once(operator: Operator) -> None:
    operator.apply(tier())
    await operator.settle()
    await measured(operator, FAST)
    writes = len(operator.cluster.writes)
    await operator.resync()
    assert len(operator.cluster.writes) == writes


async def test_the_third_probe_in_a_row_changes_the_verdict(operator: Operator) -> None:
    operator.apply(tier())
    await operator.settle()
    await measured(operator, replace(FAST, bytes_per_second=1.01 * B_STAR))
    assert operator.status()["verdict"] == "PaysWhenLong"
    # Hits of 8,192 tokens lose over a link of 1.01 B*.
    assert operator.condition("EarningItsKeep")["status"] == "False"
    slow = replace(
        FAST, bytes_per_second=0.95 * B_STAR, slowest_rank_bytes_per_second=0.475 * B_STAR
    )
    seen = []
    for minute in (1, 2, 3):
        await measured(operator, replace(slow, at=f"2026-11-30T02:0{minute}:00Z"))
        seen.append(operator.status()["verdict"])
        if minute < 3:
            earning = operator.condition("EarningItsKeep")
            assert (earning["status"], earning["reason"]) == ("False", "PaysWhenLong")
            assert earning["message"].startswith(
                "PaysWhenLong, until 3 probes in a row say otherwise. The last one says NeverPays: "
            )
    assert seen == ["PaysWhenLong", "PaysWhenLong", "NeverPays"]
    earning = operator.condition("EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("False", "BelowBreakEven")
    assert operator.recorder.events[-1].type == "Warning"
    assert operator.condition("Ready")["status"] == "True", "a verdict stops nothing"


@pytest.mark.parametrize(("ratio", "verdict"), [(0.95, "PaysWhenLong"), (0.5, "NeverPays")])
async def test_a_new_process_goes_on_from_the_status(
    operator: Operator, ratio: float, verdict: str
) -> None:
    operator.apply(tier())
    await operator.settle()
    await measured(operator, replace(FAST, bytes_per_second=1.01 * B_STAR))
    operator.restart()
    operator.reconciler.memory.of(KEY).link = replace(
        FAST, bytes_per_second=ratio * B_STAR, at="2026-11-30T02:00:00Z"
    )
    operator.queue.add(KEY, dirty=frozenset({TIER.kind}))
    await operator.settle()
    assert operator.status()["verdict"] == verdict


async def test_an_edit_of_the_spec_changes_the_verdict_at_once(operator: Operator) -> None:
    operator.apply(tier())
    await operator.settle()
    await measured(operator, replace(FAST, bytes_per_second=1.01 * B_STAR))
    quicker = tier()
    quicker["pool"]["prefillRate"] = [{"tokensPerSecond": 5200}]
    operator.apply(quicker)
    await operator.settle()
    assert operator.status()["verdict"] == "NeverPays"


async def test_what_is_known_already_is_not_judged_again(operator: Operator) -> None:
    operator.apply(tier())
    await operator.settle()
    await measured(operator, FAST)
    memory = operator.reconciler.memory.of(KEY)
    last = memory.judged
    assert last is not None
    await operator.resync()
    assert memory.judged is last
    quicker = tier()
    quicker["pool"]["prefillRate"] = [{"tokensPerSecond": 6000}]
    operator.apply(quicker)
    await operator.settle()
    assert memory.judged is not None
    assert memory.judged is not last
    assert memory.judged[1].assessment.break_even == 1024 * 6000


async def test_findings_are_counted(operator: Operator) -> None:
    body = hopeless()
    body["model"] |= {"revision": "main"}
    operator.apply(body)
    await operator.settle()
    text = generate_latest(operator.metrics.registry).decode()
    assert 'kvtier_tier_findings{namespace="serving",severity="Error",tier="demo"} 1.0' in text
    assert 'kvtier_tier_findings{namespace="serving",severity="Warning",tier="demo"} 1.0' in text


async def test_findings_are_in_the_status_one_by_one_the_heaviest_first(
    operator: Operator,
) -> None:
    slow = {"domain": "zone", "bitsPerSecond": "40M", "roundTrip": "50us"}
    body = hopeless()
    body["placement"] = {"links": [slow]}
    operator.apply(body)
    await operator.settle()
    findings = operator.status()["findings"]
    errors = [each["severity"] == "Error" for each in findings]
    assert errors == sorted(errors, reverse=True)
    assert sum(errors) >= 2
    assert findings[0]["reason"] == "NoPromptLongEnough"
    assert findings[0]["blocks"] is True
    message = operator.condition("PlacementAccepted")["message"]
    assert message.startswith(findings[0]["message"])
    for each in findings[1:]:
        assert f"{each['severity']} {each['reason']}" in message
        assert each["message"] not in message, "its sentence is said once"


async def test_a_condition_that_warns_begins_with_the_warning(operator: Operator) -> None:
    body = tier()
    body["workload"]["hitTokens"] = [
        {"quantile": "0.5", "tokens": 8192},
        {"quantile": "1", "tokens": 2_000_000},
    ]
    operator.apply(body)
    await operator.settle()
    first = operator.status()["findings"][0]
    accepted = operator.condition("PlacementAccepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "Accepted")
    assert accepted["message"].startswith(f"Warning {first['reason']}: {first['message']}")
    assert "No check found an error." in accepted["message"]


async def test_lengths_that_the_store_cannot_hold_are_marked_in_the_status(
    operator: Operator,
) -> None:
    body = tier()
    body["workload"]["hitTokens"] = [
        {"quantile": "0.5", "tokens": 8192},
        {"quantile": "1", "tokens": 2_000_000},
    ]
    operator.apply(body)
    await operator.settle()
    rows = operator.status()["breakEven"]["perLength"]
    assert "fits" not in rows[0]
    assert (rows[-1]["wins"], rows[-1]["fits"]) == (True, False)
