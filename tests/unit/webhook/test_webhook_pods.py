"""The part that reads tiers and writes events, on a fake API server."""

from typing import Any

import pytest
from injection_pods import engine, id_of, live, patched, pod

from kvtier.api import reasons
from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import EVENT, TIER, Forbidden, Unavailable
from kvtier.reconcile.clock import FakeClock
from kvtier.webhook.injection import Injection
from kvtier.webhook.metrics import INJECTIONS, WebhookMetrics
from kvtier.webhook.pods import TOLD_WITHIN, Injector, workload_of
from kvtier.webhook.review import BadReview, Decision, Request


class Bench:
    """An injector in front of one API server."""

    def __init__(self, metrics: WebhookMetrics) -> None:
        self.cluster = FakeCluster()
        self.clock = FakeClock()
        self.metrics = metrics
        self.injector = Injector(
            self.cluster, metrics=metrics, instance="webhook-0", clock=self.clock
        )

    async def ask(self, made: dict[str, Any] | None, **request: Any) -> Decision:
        fields = {"uid": "u", "operation": "CREATE", "namespace": "serving", **request}
        found = await self.injector.decide(Request(object=made, **fields))
        await self.injector.close()
        assert not found.refusals
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.cluster.all(EVENT))

    def counted(self) -> dict[str, float | None]:
        return {
            each: self.metrics.registry.get_sample_value(
                "kvtier_webhook_pods_total", {"result": each}
            )
            for each in INJECTIONS
        }


@pytest.fixture
def bench(metrics: WebhookMetrics) -> Bench:
    found = Bench(metrics)
    found.cluster.seed(live())
    return found


def unreadable(**metadata: Any) -> dict[str, Any]:
    made = pod(engine(["vllm", "serve", "tiny"]))
    made["metadata"] |= metadata
    return made


async def test_a_pod_that_asks_gets_its_patch_and_nobody_an_event(bench: Bench) -> None:
    decision = await bench.ask(pod())
    after = patched(pod(), Injection("", decision.patch))
    assert after["spec"]["volumes"][0]["secret"]["secretName"] == f"demo-engine-{id_of()}"
    assert (decision.warnings, bench.events) == ((), [])
    assert bench.counted() == {"injected": 1, "leftAlone": 0}


@pytest.mark.parametrize("asked", [None, "false", ""])
async def test_a_pod_that_does_not_ask_costs_no_request(bench: Bench, asked: str | None) -> None:
    made = pod()
    made["metadata"]["annotations"] = {} if asked is None else {"kvtier.dev/inject": asked}
    bench.cluster.fail(Unavailable(status=0, reason="", message="asked"), verb="get")
    assert await bench.ask(made) == Decision()
    assert await bench.ask(pod(), operation="UPDATE") == Decision()
    assert await bench.ask(pod(), subresource="status") == Decision()
    assert bench.cluster.requests == []


async def test_a_pod_that_is_left_alone_has_a_warning_and_its_tier_an_event(bench: Bench) -> None:
    decision = await bench.ask(unreadable())
    (warning,) = decision.warnings
    assert "kvtier left this pod alone" in warning
    assert decision.patch == ()
    (event,) = bench.events
    assert event["involvedObject"]["name"] == "demo"
    assert (event["type"], event["reason"]) == ("Warning", reasons.POD_NOT_INJECTED)
    assert event["message"].startswith("Deployment llama uses no tier: ")
    assert bench.counted() == {"injected": 0, "leftAlone": 1}


async def test_one_workload_is_told_of_once_for_one_cause(bench: Bench) -> None:
    for hash_ in ("7d9", "8e0", "9f1"):
        labels = {"kvtier.dev/tier": "demo", "pod-template-hash": hash_}
        owner = {"kind": "ReplicaSet", "name": f"llama-{hash_}", "controller": True}
        await bench.ask(unreadable(labels=labels, ownerReferences=[owner]))
    assert len(bench.events) == 1
    await bench.ask(pod(engine(["nginx"])))
    assert len(bench.events) == 2
    owner = {"kind": "StatefulSet", "name": "other", "controller": True}
    await bench.ask(unreadable(ownerReferences=[owner]))
    assert len(bench.events) == 3
    await bench.clock.advance(TOLD_WITHIN + 1)
    await bench.ask(unreadable())
    assert len(bench.events) == 4
    assert {request.verb for request in bench.cluster.writes} == {"post"}


async def test_a_dry_run_is_answered_and_leaves_nothing(bench: Bench) -> None:
    assert (await bench.ask(unreadable(), dry_run=True)).warnings
    assert (await bench.ask(pod(), dry_run=True)).patch
    assert bench.events == []


async def test_an_annotation_of_another_word_is_a_warning(bench: Bench) -> None:
    made = pod()
    made["metadata"]["annotations"]["kvtier.dev/inject"] = "yes"
    (warning,) = (await bench.ask(made)).warnings
    assert '"true"' in warning


@pytest.mark.parametrize("name", ["absent", "../../../secrets/x", "UPPER", "a/b"])
async def test_a_tier_that_is_not_there_is_a_warning(bench: Bench, name: str) -> None:
    made = pod()
    made["metadata"]["labels"]["kvtier.dev/tier"] = name
    assert (await bench.ask(made)).warnings
    assert (await bench.ask(pod(), namespace="../x")).warnings
    assert bench.events == []


async def test_a_tier_that_cannot_be_used_is_a_warning(bench: Bench) -> None:
    going, refused = live(deletionTimestamp="2026-01-01T00:00:00Z"), live()
    refused["spec"]["pool"]["chunkTokens"] = 16384
    refused["spec"]["store"]["memoryPerRank"] = "64Mi"
    for document in (going, refused):
        bench.cluster.remove(TIER, "serving", "demo")
        bench.cluster.seed(document)
        assert (await bench.ask(pod())).warnings


async def test_an_api_server_that_does_not_answer_leaves_the_pod_as_it_is(bench: Bench) -> None:
    for error in (Unavailable, Forbidden):
        bench.cluster.fail(error(status=0, reason="", message="gone"), verb="get")
        decision = await bench.ask(pod())
        assert (decision.patch, len(decision.warnings)) == ((), 1)


async def test_an_event_that_cannot_be_written_holds_up_no_pod(bench: Bench) -> None:
    bench.cluster.fail(Forbidden(status=403, reason="", message="no"), verb="post")
    assert (await bench.ask(unreadable())).warnings


async def test_a_review_without_its_pod_is_none(bench: Bench) -> None:
    with pytest.raises(BadReview):
        await bench.ask(None)


@pytest.mark.parametrize(
    ("metadata", "workload"),
    [
        ({"name": "engine-0"}, "Pod engine-0"),
        ({"generateName": "job-"}, "Pod job"),
        (
            {
                "name": "llama-0-1",
                "ownerReferences": [{"kind": "StatefulSet", "name": "llama-0", "controller": True}],
            },
            "StatefulSet llama-0",
        ),
        (
            {"ownerReferences": [{"kind": "ReplicaSet", "name": "bare", "controller": True}]},
            "ReplicaSet bare",
        ),
        (
            {"name": "p", "ownerReferences": [{"kind": "X", "name": "y"}, "junk"]},
            "Pod p",
        ),
    ],
)
def test_a_workload_is_called_as_people_know_it(metadata: dict[str, Any], workload: str) -> None:
    assert workload_of({"metadata": metadata}) == workload
