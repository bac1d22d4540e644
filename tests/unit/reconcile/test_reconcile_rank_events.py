"""Events about ranks that are lost and back, by the reconciler on fakes."""

from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import POD
from kvtier.reconcile.clock import FakeClock

RANK_EVENTS = ("RankDown", "RankBack")


def about_ranks(operator: Operator) -> list[str]:
    return [each for each in operator.recorder.reasons() if each in RANK_EVENTS]


async def fall(operator: Operator, pod: str) -> None:
    operator.cluster.run_statefulsets(ready=lambda each: each["metadata"]["name"] != pod)
    await operator.settle(kubelets=False)


async def recover(operator: Operator, clock: FakeClock) -> None:
    operator.cluster.run_statefulsets()
    await clock.advance(10)
    operator.queue.add(KEY)
    await operator.settle()


async def test_a_bring_up_and_a_planned_restart_tell_of_no_rank(ready: Operator) -> None:
    ready.apply(spec(memoryPerRank="512Mi"))
    await ready.settle()
    assert "RestartingAllRanks" in ready.recorder.reasons()
    assert about_ranks(ready) == []


async def test_a_lost_rank_is_one_event_and_its_return_another(
    ready: Operator, clock: FakeClock
) -> None:
    await fall(ready, "demo-r1-0")
    assert about_ranks(ready) == ["RankDown"]
    for _ in range(3):
        await clock.advance(30)
        ready.queue.add(KEY)
        await ready.settle(kubelets=False)
    assert about_ranks(ready) == ["RankDown"]
    await recover(ready, clock)
    assert about_ranks(ready) == ["RankDown", "RankBack"]


async def test_a_deleted_pod_is_told_of_and_comes_back_empty(
    ready: Operator, clock: FakeClock
) -> None:
    await clock.advance(10)
    ready.cluster.edit(
        POD, KEY[0], "demo-r0-0", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:15Z"}}
    )
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle(kubelets=False)
    await recover(ready, clock)
    assert about_ranks(ready) == ["RankDown", "RankBack"]
    assert "empty" in ready.recorder.events[-1].message


async def test_ranks_of_a_refused_tier_are_told_of_too(ready: Operator, clock: FakeClock) -> None:
    changed = spec()
    changed["model"]["revision"] = "r2"
    ready.apply(changed)
    await ready.settle()
    await fall(ready, "demo-r1-0")
    assert about_ranks(ready) == ["RankDown"]
    await recover(ready, clock)
    assert about_ranks(ready) == ["RankDown", "RankBack"]
