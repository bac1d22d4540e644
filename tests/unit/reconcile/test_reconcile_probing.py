"""The reconciler on fakes: when a tier is probed, from where, and what becomes of it."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from pool_harness import add_engine, add_node, leaves
from probe_harness import JOB_NAME, NAMESPACE, ask, asked_of_jobs, job, probed
from tier_harness import KEY, Operator, again, spec

from kvtier.cluster.protocol import (
    JOB,
    POD,
    STATEFULSET,
    TIER,
    Forbidden,
    Unavailable,
)
from kvtier.reconcile import probing
from kvtier.render.probe import NODE_ANNOTATION, PROBE_LABEL

INTERVAL = 6 * 3600.0


async def test_a_tier_that_became_ready_is_measured_from_each_engine_s_node(
    serving: Operator,
) -> None:
    serving.links = {"n1": 2e9, "n2": 1.5e9}
    measured = await probed(serving)
    # Two ranks, and an engine on n2 gets no more than it can.
    assert measured["bytesPerSecond"] == 3_000_000_000
    assert measured["node"] == "n2"
    assert measured["roundTripSeconds"] == 100e-6
    assert "lowerBound" not in measured
    at = datetime.fromisoformat(measured["at"])
    assert timedelta(0) <= serving.clock.now() - at < timedelta(minutes=2)
    assert job(serving) is None
    assert serving.recorder.reasons().count("Probed") == 1


async def test_each_node_costs_one_job_and_its_readings_and_no_more(serving: Operator) -> None:
    await probed(serving)
    # One look whether there is one already; then for each of two nodes. The first takes two looks.
    first, second = ["post", "get", "get", "delete"], ["post", "get", "delete"]
    assert asked_of_jobs(serving) == ["get", *first, *second]
    lists = [each for each in serving.cluster.requests if each.kind is POD and each.verb == "list"]
    before = len(lists)
    await again(serving, 60)
    assert len(asked_of_jobs(serving)) == 8
    assert len([e for e in serving.cluster.requests if e.kind is POD and e.verb == "list"]) == (
        before
    )


async def test_ranks_that_move_are_probed_where_they_come_to(unpinned: Operator) -> None:
    unpinned.links = {"n1": None}
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    await again(unpinned)
    made = [(each.verb, each.kind) for each in unpinned.cluster.requests]
    assert made.index(("post", JOB)) > made.index(("delete", POD))
    assert leaves(unpinned) == {"leaf-a"}


async def test_between_probes_nothing_is_written(serving: Operator) -> None:
    await probed(serving)
    writes = len(serving.cluster.writes)
    for _ in range(3):
        await serving.resync()
    assert len(serving.cluster.writes) == writes
    assert len(asked_of_jobs(serving)) == 8


async def test_it_is_measured_again_when_the_interval_is_over(serving: Operator) -> None:
    first = await probed(serving)
    await again(serving, INTERVAL - 600)
    assert serving.status()["measured"]["at"] == first["at"]
    await again(serving, 700)
    second = await probed(serving)
    assert second["at"] > first["at"]


async def test_the_interval_is_the_tier_s_own(serving: Operator) -> None:
    placement = {"probe": {"interval": "30m"}}
    serving.apply(spec() | {"placement": placement})
    await serving.settle()
    first = await probed(serving)
    await again(serving, 31 * 60)
    assert (await probed(serving))["at"] > first["at"]


async def test_an_engine_on_another_node_is_measured_from_there(serving: Operator) -> None:
    await probed(serving)
    add_node(serving, "n3", "leaf-a")
    serving.links = {"n3": 1e8}
    add_engine(serving, "engine-2", "n3")
    await serving.settle()
    measured = await probed(serving, looks=8)
    assert (measured["node"], measured["bytesPerSecond"]) == ("n3", 200_000_000)


async def test_a_second_engine_on_a_node_is_no_reason(serving: Operator) -> None:
    first = await probed(serving)
    add_engine(serving, "engine-9", "n1")
    await serving.settle()
    assert (await probed(serving))["at"] == first["at"]


async def test_without_engines_there_is_no_probe(operator: Operator) -> None:
    operator.apply()
    await operator.settle()
    for _ in range(3):
        await again(operator)
    assert asked_of_jobs(operator) == []
    assert "measured" not in operator.status()


async def test_a_tier_that_is_not_ready_is_not_probed(operator: Operator) -> None:
    add_node(operator, "n1", "leaf-a")
    add_engine(operator, "engine-0", "n1")
    operator.apply()
    for _ in range(3):
        operator.queue.add(KEY)
        await operator.settle(kubelets=False)
    assert "post" not in asked_of_jobs(operator)


async def test_a_paused_tier_is_not_probed(serving: Operator) -> None:
    serving.apply(spec() | {"paused": True})
    await serving.settle()
    posts = asked_of_jobs(serving).count("post")
    ask(serving, "2030-01-01T00:00:00Z")
    for _ in range(3):
        await again(serving)
    assert asked_of_jobs(serving).count("post") <= max(posts, 1)


async def test_an_operator_that_starts_measures_nothing_anew(serving: Operator) -> None:
    measured = await probed(serving)
    writes = len(serving.cluster.writes)
    serving.restart()
    serving.queue.add(KEY, dirty=frozenset({"KVCacheTier"}))
    await serving.settle()
    for _ in range(3):
        await again(serving)
    assert serving.status()["measured"] == measured
    assert len(serving.cluster.writes) == writes


async def test_an_operator_that_starts_reads_the_job_of_the_one_before(serving: Operator) -> None:
    assert job(serving) is not None
    serving.restart()
    serving.queue.add(KEY, dirty=frozenset({"KVCacheTier"}))
    await serving.settle()
    assert asked_of_jobs(serving).count("post") >= 1
    measured = await probed(serving)
    assert measured["bytesPerSecond"] == 2_000_000_000
    assert job(serving) is None


async def test_a_rank_that_started_while_no_operator_ran_is_measured(serving: Operator) -> None:
    first = await probed(serving)
    await serving.clock.advance(60)
    serving.cluster.remove(POD, NAMESPACE, "demo-r0-0")
    serving.cluster.run_statefulsets()
    serving._start_servers()
    serving.restart()
    serving.queue.add(KEY, dirty=frozenset({"KVCacheTier"}))
    await serving.settle()
    assert (await probed(serving, looks=8))["at"] > first["at"]


async def test_a_job_of_that_name_which_is_somebody_else_s_is_left_alone(
    operator: Operator,
) -> None:
    foreign = operator.cluster.seed(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"namespace": NAMESPACE, "name": JOB_NAME, "annotations": {"a": "b"}},
            "spec": {},
            "status": {"conditions": [{"type": "Complete", "status": "True"}]},
        }
    )
    add_node(operator, "n1", "leaf-a")
    add_engine(operator, "engine-0", "n1")
    operator.apply()
    await operator.settle()
    for _ in range(4):
        await again(operator)
    assert job(operator) == foreign
    (told,) = [e.message for e in operator.recorder.events if e.reason == "ProbeFailed"]
    assert "is not this tier's" in told
    assert operator.condition("Ready")["status"] == "True"


async def test_a_probe_without_figures_is_told_and_tried_again_later(serving: Operator) -> None:
    serving.cluster.edit(
        JOB,
        NAMESPACE,
        JOB_NAME,
        {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "Deadline"}]}},
    )
    await again(serving)
    assert job(serving) is not None, "the other node has its turn"
    serving.cluster.edit(
        JOB,
        NAMESPACE,
        JOB_NAME,
        {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "Deadline"}]}},
    )
    await again(serving)
    failed = [e.message for e in serving.recorder.events if e.reason == "ProbeFailed"]
    assert len(failed) == 2
    assert job(serving) is None
    await again(serving, 30)
    assert job(serving) is None, "not before a minute"
    serving.links = {}
    await again(serving, 40)
    assert job(serving) is not None
    assert (await probed(serving))["bytesPerSecond"] == 2_000_000_000


async def test_a_message_that_is_no_result_is_told_in_one_line(
    serving: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_probe", lambda _: "Traceback (most recent call last):")
    for _ in range(4):
        await again(serving)
    failed = [e.message for e in serving.recorder.events if e.reason == "ProbeFailed"]
    assert len(failed) == 2
    assert all("no JSON" in each and "\n" not in each for each in failed)


async def test_a_refused_job_costs_nothing_but_the_probe(operator: Operator) -> None:
    quota = Forbidden(status=403, reason="Forbidden", message="exceeded quota: jobs")
    operator.cluster.fail(quota, verb="post", kind=JOB, times=99)
    add_node(operator, "n1", "leaf-a")
    add_engine(operator, "engine-0", "n1")
    operator.apply()
    await operator.settle()
    for _ in range(3):
        await again(operator)
    assert operator.condition("Ready")["status"] == "True"
    failed = [e.message for e in operator.recorder.events if e.reason == "ProbeFailed"]
    assert len(failed) == 1
    assert "exceeded quota" in failed[0]


@pytest.mark.parametrize("verb", ["get", "post", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_that_is_lost_is_asked_for_again(
    verb: str, when: Any, operator: Operator
) -> None:
    lost = Unavailable(status=0, reason="", message="no answer")
    operator.cluster.fail(lost, verb=verb, kind=JOB, times=1, when=when)
    add_node(operator, "n1", "leaf-a")
    add_engine(operator, "engine-0", "n1")
    operator.apply()
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"
    measured = await probed(operator, looks=8)
    assert measured["bytesPerSecond"] == 2_000_000_000
    assert job(operator) is None


async def test_whoever_lost_the_lease_makes_no_job(operator: Operator) -> None:
    add_node(operator, "n1", "leaf-a")
    operator.apply()
    await operator.settle()
    operator.leads = False
    add_engine(operator, "engine-0", "n1")
    with pytest.raises(Exception, match="lease"):
        await operator.settle()
    assert job(operator) is None


async def test_of_many_tiers_a_few_are_probed_at_a_time(
    serving: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "MOST_AT_ONCE", 0)
    serving.restart()
    serving.cluster.remove(JOB, NAMESPACE, JOB_NAME)
    serving.queue.add(KEY, dirty=frozenset({"KVCacheTier"}))
    await serving.settle()
    for _ in range(3):
        await again(serving, probing.TURN_SECONDS)
    assert job(serving) is None
    monkeypatch.setattr(probing, "MOST_AT_ONCE", 1)
    await again(serving, probing.TURN_SECONDS)
    assert job(serving) is not None


async def test_the_job_is_the_tier_s_and_no_rank(serving: Operator) -> None:
    found = job(serving)
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["name"] == KEY[1]
    assert found["metadata"]["annotations"][NODE_ANNOTATION] == "n1"
    pods = [p for p in serving.cluster.all(POD) if PROBE_LABEL in p["metadata"]["labels"]]
    assert len(pods) == 1
    assert "kvtier.dev/tier-name" not in pods[0]["metadata"]["labels"]
    assert serving.status()["ranks"] == "2/2"
    assert len(serving.cluster.all(STATEFULSET)) == 2


async def test_metrics_tell_of_the_last_probe(serving: Operator) -> None:
    measured = await probed(serving)
    registry = serving.metrics.registry
    labels = {"namespace": KEY[0], "tier": KEY[1]}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, labels | more)

    assert value("kvtier_probe_bytes_per_second") == measured["bytesPerSecond"]
    assert value("kvtier_probe_round_trip_seconds") == measured["roundTripSeconds"]
    at = datetime.fromisoformat(measured["at"]).timestamp()
    assert value("kvtier_probe_timestamp_seconds") == at
    assert value("kvtier_probe_runs_total", result="success") == 2
    assert [value("kvtier_probe_rank_bytes_per_second", rank=rank) for rank in ("0", "1")] == [
        1e9
    ] * 2
    assert value("kvtier_probe_rank_round_trip_seconds", rank="1") == measured["roundTripSeconds"]
    assert registry.get_sample_value("kvtier_probes_running") == 0
    serving.cluster.remove(TIER, *KEY)
    await serving.settle()
    assert value("kvtier_probe_runs_total", result="success") is None


async def test_the_verdict_goes_by_what_was_measured(serving: Operator) -> None:
    assert serving.status()["verdict"] == "Unknown"
    needed = serving.status()["breakEven"]["bytesPerSecond"]
    serving.links = {"n1": needed, "n2": needed / 10}
    measured = await probed(serving)
    assert measured["ratio"] == pytest.approx(0.2, rel=0.1)
    assert serving.status()["verdict"] == "NeverPays"
    assert serving.condition("PlacementAccepted")["reason"] == "BelowBreakEven"
