"""One bring-up of eight ranks, timed by watches: by kvtier, or by kubectl from ready manifests."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtier.api.load import parse_tier
from kvtier.generation.record import new_record
from kvtier.redact import new_token
from kvtier.render.render import RenderSettings, render
from livecluster.api import Object, is_ready
from livecluster.fixtures import tiers
from livecluster.installation import Installation
from livecluster.tier import CHILD_KINDS, Tier, manifest
from livecluster.waiting import eventually

RANKS = 8
SPEC = {"pool": {"ranks": RANKS}, "store": {"ioThreads": 1, "cpu": "250m"}}
GIVE_UP_SECONDS = 90.0
GONE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class BringUp:
    """Seconds after the start of ``kubectl apply``. ``requests`` are the controller's until Ready
    and 2 s more, without its Lease and watches; the floor has neither those nor a tier."""

    applied: float
    ranks_ready: float
    tier_ready: float = 0.0
    requests: int = 0


class Stopwatch:
    """Notes when all ranks of a namespace, and its tier, become ready."""

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self.ranks_ready: float | None = None
        self.tier_ready: float | None = None

    def pod(self, pod: Object) -> None:
        if is_ready(pod):
            self._ready.add(pod["metadata"]["name"])
        if len(self._ready) == RANKS and self.ranks_ready is None:
            self.ranks_ready = time.monotonic()

    def tier(self, tier: Object) -> None:
        if is_ready(tier) and self.tier_ready is None:
            self.tier_ready = time.monotonic()


def by_kvtier(kvtier: Installation) -> BringUp:
    """Apply the tier; kvtier does the rest."""
    with tiers(kvtier.cluster, label="bench-operator") as new:
        tier = new("chat")
        document = manifest(name=tier.name, namespace=tier.namespace, spec=SPEC)
        begin = kvtier.cluster.audit.mark()
        started, applied, watch = _timed(tier, [document], until=lambda seen: seen.tier_ready)
        time.sleep(2)
        requests = [
            request
            for request in kvtier.requests(begin)
            if request.namespace in (tier.namespace, "")
            and request.verb != "watch"
            and request.resource != "leases"
        ]
        tier.kubectl("delete", "kvt", tier.name, "--cascade=foreground", "--timeout=120s")
        _wait_gone(tier)
    assert watch.ranks_ready is not None
    assert watch.tier_ready is not None
    return BringUp(
        applied=applied - started,
        ranks_ready=watch.ranks_ready - started,
        tier_ready=watch.tier_ready - started,
        requests=len(requests),
    )


def by_kubectl(kvtier: Installation) -> BringUp:
    """Apply what kvtier renders for the same tier, with tokens of the same form, ready made."""
    with tiers(kvtier.cluster, label="bench-floor") as new:
        tier = new("chat")
        documents = rendered(tier)
        started, applied, watch = _timed(tier, documents, until=lambda seen: seen.ranks_ready)
        tier.kubectl("delete", "statefulset,service,configmap,secret", "--all", "--wait=false")
        _wait_gone(tier)
    assert watch.ranks_ready is not None
    return BringUp(applied=applied - started, ranks_ready=watch.ranks_ready - started)


def rendered(tier: Tier) -> list[dict[str, Any]]:
    """All children, without the owner that they do not have here."""
    parsed = parse_tier(manifest(name=tier.name, namespace=tier.namespace, spec=SPEC))
    record = new_record(parsed.spec, operator_token=new_token(), engine_token=new_token())
    documents = render(parsed, record, settings=RenderSettings())
    for document in documents:
        document["metadata"].pop("ownerReferences")
        # The controller must not take them for a tier's own and look for that tier.
        document["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "bench"
    return documents


def _timed(
    tier: Tier, documents: list[dict[str, Any]], *, until: Callable[[Stopwatch], float | None]
) -> tuple[float, float, Stopwatch]:
    """Apply and wait: (when it started, when kubectl was done, what the watches saw)."""
    seen = Stopwatch()
    api = tier.cluster.api
    text = "\n---\n".join(map(json.dumps, documents))
    with (
        api.watch("pods", tier.namespace, seen=seen.pod),
        api.watch("kvcachetiers", tier.namespace, seen=seen.tier),
    ):
        started = time.monotonic()
        tier.cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)
        applied = time.monotonic()
        eventually(lambda: until(seen) and seen.ranks_ready, seconds=GIVE_UP_SECONDS, what="ready")
    return started, applied, seen


def _wait_gone(tier: Tier) -> None:
    """Until nothing of the round is left to compete with the next."""

    def left() -> list[str]:
        return [
            obj["metadata"]["name"]
            for plural in (*CHILD_KINDS, "pods")
            for obj in tier.cluster.api.list(plural, tier.namespace)
            if obj["metadata"]["name"] != "kube-root-ca.crt"
        ]

    eventually(lambda: not left(), seconds=GONE_SECONDS, what="all is gone", detail=left)
