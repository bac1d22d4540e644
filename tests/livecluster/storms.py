"""A pool of stand-in engines behind a real Envoy and real limiters, and what a storm does to it."""

import copy
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import yaml

from kvtier.api.load import parse_tier
from kvtier.generation.identity import generation_id
from livecluster.api import Object, is_ready
from livecluster.callers import IMAGE
from livecluster.cluster import LiveCluster
from livecluster.gateway import LIMITER_PORT, Gateway
from livecluster.installation import NAMESPACE, Installation
from livecluster.storm_load import Traffic
from livecluster.tier import Patch, Tier, merged
from livecluster.waiting import eventually

_DEPLOYMENT: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "fleet.yaml").read_text())[
    "deployment"
]
ENGINES: Final = 2
RATE: Final = 2000.0
"""Tokens/s that one engine is declared to prefill."""
TRAFFIC: Final = Traffic(requests_per_second=24.0, tokens=640, shared=576, prefixes=400)
"""At 90 % hits engines are busy 38 % of the time, without any 3.8 times as long as there is."""
TARGET_TTFT: Final = 2.0
SPEC: Final[Patch] = {
    "pool": {
        "chunkTokens": 64,
        "prefillRate": [{"tokensPerSecond": int(RATE)}],
        "maxEngines": ENGINES,
    },
    "workload": {
        "promptTokens": [{"quantile": "0.5", "tokens": TRAFFIC.tokens}],
        "hitTokens": [{"quantile": "0.5", "tokens": TRAFFIC.shared}],
        "hitRate": "0.9",
        "requestsPerSecond": f"{TRAFFIC.requests_per_second / ENGINES:g}",
        "targetTTFT": f"{TARGET_TTFT:g}s",
    },
    "admission": {"mode": "Enforce"},
}
LIMITERS: Final = "app.kubernetes.io/instance=kvtier,app.kubernetes.io/component=limiter"


@dataclass(frozen=True, slots=True)
class Seen:
    """What engines and limiters told at one moment (of ``time.time()``). Tokens since the engines'
    start; ``states`` are limiters' views of the tier by replica."""

    at: float
    prompt: float
    hit: float
    computed: float
    waiting: float
    wrong: float
    states: Mapping[str, Object]

    @property
    def state(self) -> str:
        """The sternest of the replicas'."""
        order = ("Storm", "Recovering", "Open")
        found = {each["state"] for each in self.states.values()}
        return next((state for state in order if state in found), "")

    @property
    def limit(self) -> float | None:
        """Tokens/s, None for no limit."""
        limits = [each["limitTokensPerSecond"] for each in self.states.values()]
        return min((each for each in limits if each is not None), default=None)


@dataclass(slots=True)
class Pool:
    """Engines of a tier. ``rate`` is what each really prefills, whatever is declared."""

    tier: Tier
    rate: float = RATE
    name: str = "prefill"
    seen: list[Seen] = field(default_factory=list)

    def deploy(self) -> None:
        here = Path(__file__).parent
        self.tier.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "storm-vllm", "namespace": self.tier.namespace},
                "data": {"vllm": (here / "storm_engine.py").read_text()},
            }
        )
        self.tier.cluster.apply(self._deployment())
        eventually(lambda: len(self.addresses()) == ENGINES, seconds=90, what="engines are Ready")

    def pods(self) -> list[Object]:
        found = self.tier.cluster.api.list("pods", self.tier.namespace, selector=f"app={self.name}")
        return [pod for pod in found if is_ready(pod)]

    def addresses(self) -> list[str]:
        return sorted(pod["status"]["podIP"] for pod in self.pods())

    def warm(self, traffic: Traffic) -> None:
        """Store all beginnings, as if all had been asked for before."""
        address = self.addresses()[0]
        query = f"first=0&last={traffic.prefixes - 1}&tokens={traffic.shared}"
        request = urllib.request.Request(
            f"http://{address}:8000/warm?{query}", data=b"", method="POST"
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            assert reply.status == 200

    @contextmanager
    def watched(self, envoy: Gateway) -> Iterator[None]:
        """Look each second, from another thread, and tell ``envoy`` which limiters there are."""
        stop = Event()
        engines = self.addresses()
        pointed = limiter_addresses(self.tier.cluster)

        def watch() -> None:
            nonlocal pointed
            while not stop.wait(1.0):
                with suppress(OSError, ValueError):
                    ready = limiter_addresses(self.tier.cluster)
                    if ready != pointed:
                        envoy.point(ready)
                        pointed = ready
                    self.seen.append(look(self.tier, engines))

        thread = Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30)

    def _deployment(self) -> Object:
        body: Object = copy.deepcopy(_DEPLOYMENT)
        spec = parse_tier(self.tier.body()).spec
        body["metadata"] = {"name": self.name, "namespace": self.tier.namespace}
        body["spec"]["replicas"] = ENGINES
        body["spec"]["selector"] = {"matchLabels": {"app": self.name}}
        labels = {"app": self.name, "kvtier.dev/tier": self.tier.name}
        body["spec"]["template"]["metadata"] = {"labels": labels}
        pod = body["spec"]["template"]["spec"]
        secret = f"{self.tier.name}-engine-{generation_id(spec)}"
        pod["volumes"] = [
            {"name": "vllm", "configMap": {"name": "storm-vllm", "defaultMode": 0o755}},
            {"name": "kvtier", "secret": {"secretName": secret, "defaultMode": 0o440}},
        ]
        engine = pod["containers"][0]
        engine["image"] = IMAGE
        engine["command"] = ["/opt/vllm/bin/vllm", "serve", spec.model.name]
        engine["args"] = [
            *("--revision", spec.model.revision),
            *("--kv-cache-dtype", spec.model.kv_cache_dtype.value),
            *("--tensor-parallel-size", str(spec.pool.ranks), "--port", "8000"),
        ]
        engine["env"] = [{"name": "STORM_RATE", "value": f"{self.rate:g}"}]
        return body


@contextmanager
def limited(kvtier: Installation) -> Iterator[None]:
    """Two limiters beside the release that all tests share, until the block ends."""
    kvtier.install("--set=limiter.enabled=true", "--set=limiter.resources.requests.cpu=100m")
    what = "two limiters are Ready"
    eventually(lambda: len(limiter_pods(kvtier.cluster)) == 2, seconds=90, what=what)
    yield
    kvtier.install("--set=limiter.enabled=false")


@contextmanager
def warm(tier: Tier, *, mode: str = "Enforce", rate: float = RATE) -> Iterator[Pool]:
    """The tier with its engines and all that they store, once all limiters know it."""
    tier.apply(merged(SPEC, {"admission": {"mode": mode}}))
    tier.wait_ready()
    pool = Pool(tier, rate=rate)
    pool.deploy()
    pool.warm(TRAFFIC)

    def known() -> bool:
        states = look(tier, pool.addresses()).states
        return len(states) >= 2 and all(each["engines"] == ENGINES for each in states.values())

    eventually(known, seconds=60, what="limiters know the tier and its engines")
    yield pool


def limiter_pods(cluster: LiveCluster) -> list[Object]:
    return [pod for pod in cluster.api.list("pods", NAMESPACE, selector=LIMITERS) if is_ready(pod)]


def limiter_addresses(cluster: LiveCluster) -> list[str]:
    return sorted(pod["status"]["podIP"] for pod in limiter_pods(cluster))


def look(tier: Tier, engines: list[str]) -> Seen:
    totals = dict.fromkeys(("prompt", "hit", "computed", "waiting", "wrong"), 0.0)
    names = {
        "vllm:prompt_tokens_total{": "prompt",
        'source="external_kv_transfer"': "hit",
        'source="local_compute"': "computed",
        "vllm:num_requests_waiting{": "waiting",
        "storm_wrong_values_total": "wrong",
    }
    for address in engines:
        for line in _read(f"http://{address}:8000/metrics").splitlines():
            for mark, total in names.items():
                if mark in line:
                    totals[total] += float(line.rpartition(" ")[2])
    states = {}
    for address in limiter_addresses(tier.cluster):
        with suppress(OSError):
            url = f"http://{address}:{LIMITER_PORT}/state/{tier.namespace}/{tier.name}"
            states[address] = json.loads(_read(url))
    return Seen(at=time.time(), states=states, **totals)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=3) as reply:
        text: str = reply.read().decode()
    return text
