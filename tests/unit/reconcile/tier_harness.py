"""A whole operator on fakes: one cluster and its Valkeys in memory, events delivered by hand."""

import base64
from typing import Any

from kvtier.api.types import API_VERSION, KIND
from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import NODE, POD, SECRET, STATEFULSET, TIER, Object
from kvtier.controller import Watcher
from kvtier.metrics import Metrics
from kvtier.plan.observed import EventSpec
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.memory import Key
from kvtier.reconcile.probing import POLL_SECONDS
from kvtier.reconcile.reconciler import Reconciler, ReconcilerSettings
from kvtier.render.names import POOL_LABEL, RANK_LABEL, TIER_LABEL, TLS_VOLUME, acl_key, acl_name
from kvtier.render.probe import NODE_ANNOTATION
from kvtier.render.render import RenderSettings
from kvtier.store.fake import FakeServer, FakeStores
from kvtier.store.protocol import Address
from small_tier import probe_message, read_conf, spec

KEY: Key = ("serving", "demo")
RESYNC = 300.0


class PlainQueue:
    """Takes what a watcher enqueues; the test runs it when it wants to."""

    def __init__(self) -> None:
        self.dirty: dict[Key, frozenset[str]] = {}

    def add(self, key: Key, *, dirty: frozenset[str] = frozenset(), delay: float = 0.0) -> None:
        del delay
        self.dirty[key] = self.dirty.get(key, frozenset()) | dirty


class PlainRecorder:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[EventSpec] = []

    async def record(self, obj: Object, event: EventSpec) -> None:
        del obj
        self.events.append(event)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


class Operator:
    """One operator process; ``restart`` loses everything that it had in memory."""

    def __init__(self, clock: FakeClock, *, envoy_gateway: bool = False) -> None:
        self.clock = clock
        self.envoy_gateway = envoy_gateway
        self.cluster = FakeCluster(clock=clock)
        self.stores = FakeStores()
        self.leads = True
        self.links: dict[str, float | None] = {}
        self._seen_pods: dict[Address, str] = {}
        self._watching = False
        self.restart()

    def restart(self) -> None:
        self.queue = PlainQueue()
        self.recorder = PlainRecorder()
        self.metrics = Metrics()
        self.reconciler = Reconciler(
            cluster=self.cluster,
            connect=self.stores.connect,
            recorder=self.recorder,
            settings=ReconcilerSettings(
                render=RenderSettings(probe_image="example.org/kvtier:1"),
                resync=RESYNC,
                envoy_gateway=self.envoy_gateway,
            ),
            clock=self.clock,
            metrics=self.metrics,
            leads=lambda: self.leads,
            jitter=lambda: 0.5,
        )
        self.watcher = Watcher(queue=self.queue, memory=self.reconciler.memory)  # type: ignore[arg-type]
        if not self._watching:
            self._watching = True
            self.cluster.watch(self._deliver)

    def _deliver(self, event: str, obj: Object) -> None:
        if obj["kind"] == KIND:
            self.watcher.on_tier({"type": event, "object": obj})
        elif obj["kind"] in ("StatefulSet", "Service", "ConfigMap"):
            self.watcher.on_child({"type": event, "object": obj})
        elif obj["kind"] == NODE.kind:
            self.watcher.on_node({"type": event, "object": obj})
        elif obj["kind"] == POD.kind and POOL_LABEL in obj["metadata"].get("labels", {}):
            self.watcher.on_engine({"type": event, "object": obj})

    def apply(self, tier_spec: dict[str, Any] | None = None) -> Object:
        """What ``kubectl apply`` of the tier does."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"namespace": KEY[0], "name": KEY[1]},
            "spec": tier_spec or spec(),
        }
        if self.cluster.peek(TIER, *KEY) is None:
            return self.cluster.seed(body)
        return self.cluster.edit(TIER, *KEY, {"spec": body["spec"]})

    async def reconcile_all(self) -> None:
        """Run every key that is enqueued now."""
        todo, self.queue.dirty = self.queue.dirty, {}
        for key, dirty in todo.items():
            result = await self.reconciler.reconcile(key, dirty)
            if result.requeue_after is not None and result.requeue_after < 1:
                self.queue.add(key)

    async def resync(self) -> None:
        """The timer of the resync fires."""
        await self.clock.advance(1.2 * RESYNC)
        self.queue.add(KEY)
        await self.settle()

    async def settle(self, rounds: int = 12, *, kubelets: bool = True) -> None:
        """Let controllers, kubelets and the operator work until nothing is left to do."""
        for _ in range(rounds):
            await self.reconcile_all()
            if kubelets:
                self.cluster.run_statefulsets()
                self.cluster.run_jobs(self._probe)
                self._start_servers()
            if not self.queue.dirty:
                return
        raise AssertionError(f"not settled after {rounds} rounds: {self.queue.dirty}")

    def _probe(self, job: Object) -> str | None:
        """What a probe leaves: ``links`` are by node bytes/s of each rank, None: it still runs."""
        node = job["metadata"]["annotations"][NODE_ANNOTATION]
        rate = self.links.get(node, 1e9)
        return None if rate is None else probe_message(node, rate=rate, at=self.clock.now())

    def _start_servers(self) -> None:
        """A Valkey for each new pod, with the ACL file that its Secret has now."""
        for pod in self.cluster.all(POD):
            if RANK_LABEL not in pod["metadata"].get("labels", {}):
                continue
            address = Address(host=pod["status"].get("podIP", ""))
            uid = pod["metadata"]["uid"]
            if not address.host or self._seen_pods.get(address) == uid:
                continue
            self._seen_pods[address] = uid
            rank = int(pod["metadata"]["labels"]["kvtier.dev/rank"])
            tier = pod["metadata"]["labels"][TIER_LABEL]
            secret = self.cluster.peek(SECRET, KEY[0], acl_name(tier))
            assert secret is not None
            acl_file = base64.b64decode(secret["data"][acl_key(rank)]).decode()
            self.stores.servers[address] = FakeServer(
                acl_file=acl_file,
                settings=read_conf(self.cluster, namespace=KEY[0], tier=tier),
                mounted=mounted_certificate(self.cluster, pod),
            )

    def deliver_users(self) -> None:
        """What kubelets do with a changed ACL file."""
        secret = self.cluster.peek(SECRET, KEY[0], acl_name(KEY[1]))
        assert secret is not None
        for name, pod in self.pods().items():
            if rank := pod["metadata"]["labels"].get(RANK_LABEL):
                data = secret["data"][acl_key(int(rank))]
                self.server(name).acl_file = base64.b64decode(data).decode()

    def status(self) -> dict[str, Any]:
        tier = self.cluster.peek(TIER, *KEY)
        assert tier is not None
        return tier.get("status", {})

    def condition(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.status()["conditions"] if each["type"] == kind)

    def statefulsets(self) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in self.cluster.all(STATEFULSET)}

    def pods(self) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in self.cluster.all(POD)}

    def uids(self) -> dict[str, str]:
        """Pods by name, to see which are new ones."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def server(self, pod: str) -> FakeServer:
        return self.stores.servers[Address(host=self.pods()[pod]["status"]["podIP"])]


def mounted_certificate(cluster: FakeCluster, pod: Object) -> tuple[bytes, bytes] | None:
    """What the kubelet gives a pod as its TLS certificate and key, None without TLS."""
    for volume in pod["spec"].get("volumes", ()):
        if volume["name"] == TLS_VOLUME:
            found = cluster.peek(SECRET, KEY[0], volume["secret"]["secretName"])
            assert found is not None, "the pod would not start"
            certificate, key = (base64.b64decode(found["data"][k]) for k in ("tls.crt", "tls.key"))
            return certificate, key
    return None


async def again(operator: Operator, seconds: float = POLL_SECONDS) -> None:
    """What the queue does when a requeue is due so much later; by default that of a probe."""
    await operator.clock.advance(seconds)
    operator.queue.add(KEY)
    await operator.settle()
