"""A Deployment of engines of a tier that carry real load and check every byte they get.

Their container looks to kvtier as vLLM's does; ``fleet_engine`` is what runs in it. What an engine
really runs and which Secret it mounts are said apart, so that they can disagree.
"""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kvtier.api.load import parse_tier
from kvtier.generation.identity import generation_id
from livecluster.api import Object
from livecluster.callers import IMAGE
from livecluster.fleet_logs import FleetLogs
from livecluster.fleet_told import Counts, Told
from livecluster.tier import Tier
from livecluster.waiting import eventually

PROGRAM = {
    "vllm": "fleet_engine.py",
    "fleet_link.py": "fleet_link.py",
    "fleet_told.py": "fleet_told.py",
}
"""What a pod runs, by its name there."""
_DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
TIER_SPEC: dict[str, Any] = _DATA["tier"]
"""To be applied to the small tier."""
ROLLED_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Runs:
    """What the engines of one template run. ``generation`` names the Secret that they mount, and
    ``seed`` is of weights that changed under one name: nobody can see it from outside."""

    model: str
    revision: str
    dtype: str
    generation: str
    seed: str = ""

    @classmethod
    def as_declared(cls, tier: Tier) -> "Runs":
        """What the tier's spec says by now; its Secret need not be there yet, pods wait for it."""
        spec = parse_tier(tier.body()).spec
        return cls(
            model=spec.model.name,
            revision=spec.model.revision,
            dtype=spec.model.kv_cache_dtype.value,
            generation=generation_id(spec),
        )


@dataclass(slots=True)
class Fleet:
    """``rate`` are requests/s of one engine, 32 chunks each. Without ``in_pool`` its pods have no
    label that says whose engines they are. ``node`` is the one to run on, if any is named."""

    tier: Tier
    logs: FleetLogs
    name: str
    replicas: int
    rate: float
    in_pool: bool
    node: str
    _history: list[Runs] = field(default_factory=list)

    @property
    def runs(self) -> Runs:
        """What the current template runs."""
        return self._history[-1]

    def deploy(self, runs: Runs | None = None) -> None:
        """Make the Deployment, of what the tier declares unless told otherwise."""
        self.tier.cluster.apply(self._program())
        self._apply(runs or Runs.as_declared(self.tier))

    def roll(self, **changes: str) -> None:
        """Another template, with these fields of ``Runs`` changed: pods are replaced one by one.

        ``roll(revision="2", generation=ID)`` is a rollout as it should be. Returns at once.
        """
        self._apply(replace(self.runs, **changes))

    def roll_back(self) -> None:
        """``kubectl rollout undo``. Returns at once."""
        self.tier.kubectl("rollout", "undo", f"deployment/{self.name}")
        self._history.append(self._history[-2])

    def hand_on(self) -> None:
        """Have the kubelets bring what is new in the Secrets now, and not within two minutes."""
        now = f"kvtier.dev/test-synced={time.time()}"
        self.tier.kubectl("annotate", "pods", "-l", f"app={self.name}", "--overwrite", now)

    def scale(self, replicas: int) -> None:
        self.tier.kubectl("scale", f"deployment/{self.name}", f"--replicas={replicas}")
        self.replicas = replicas

    def delete(self) -> None:
        """Its pods end with all that they have to tell."""
        self.tier.kubectl("delete", f"deployment/{self.name}")
        eventually(lambda: not self.pods(), seconds=60, what=f"{self.name}'s pods are gone")

    def pods(self) -> list[Object]:
        return self.tier.cluster.api.list("pods", self.tier.namespace, selector=f"app={self.name}")

    def wait_rolled(self, *, seconds: float = ROLLED_SECONDS) -> None:
        """Until all pods are of the current template, Ready, and no other is left."""

        def rolled() -> bool:
            body = self.tier.child("deployments", self.name) or {}
            status = body.get("status", {})
            current = status.get("observedGeneration") == body["metadata"]["generation"]
            counted = {status.get(name, 0) for name in ("replicas", "updatedReplicas")}
            counted.add(status.get("readyReplicas", 0))
            return current and counted == {self.replicas} and len(self.pods()) == self.replicas

        eventually(rolled, seconds=seconds, what=f"{self.name} is rolled out", detail=self.detail)

    def wait(self, moment: str, *, since: float = 0.0, seconds: float = 60.0) -> Told:
        """The first stretch that has a ``hit``, ``write``, ``denied``, ``refused`` or ``wrong``
        after ``since`` (seconds since the epoch), whichever the pod."""

        def found() -> Told | None:
            return next(
                (
                    told
                    for told in self.timeline()
                    if moment in told.moments and told.moments[moment][1] > since
                ),
                None,
            )

        return eventually(
            found, seconds=seconds, what=f"{self.name} has a {moment}", detail=self.detail
        )

    def timeline(self, *, generation: str = "") -> list[Told]:
        """Each stretch of each pod that ever ran, in the order they began, as last told: at most a
        second ago, or at its end. Of one generation if it is named."""
        return [each for each in self.logs.look() if generation in ("", each.generation)]

    def counts(self, *, generation: str = "") -> Counts:
        """All stretches together."""
        return sum((told.counts for told in self.timeline(generation=generation)), Counts())

    def detail(self) -> str:
        """For the message of a failing test."""
        phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in self.pods()}
        told = [
            f"{each.pod}: {each.generation} {each.counts.requests} requests, "
            f"{each.counts.errors} errors, {each.moments}"
            for each in self.timeline()
        ]
        return "\n".join([str(phases), *told, *self.logs.complaints[-20:]])

    def _apply(self, runs: Runs) -> None:
        self._history.append(runs)
        self.tier.cluster.apply(self._deployment(runs))

    def _program(self) -> Object:
        here = Path(__file__).parent
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "fleet-vllm", "namespace": self.tier.namespace},
            "data": {name: (here / file).read_text() for name, file in PROGRAM.items()},
        }

    def _deployment(self, runs: Runs) -> Object:
        body: Object = copy.deepcopy(_DATA["deployment"])
        body["metadata"] = {"name": self.name, "namespace": self.tier.namespace}
        spec = body["spec"]
        spec["replicas"] = self.replicas
        labels = {"app": self.name}
        spec["selector"] = {"matchLabels": dict(labels)}
        if self.in_pool:
            labels["kvtier.dev/tier"] = self.tier.name
        spec["template"]["metadata"] = {"labels": labels}
        pod = spec["template"]["spec"]
        if self.node:
            pod["nodeSelector"] = {"kubernetes.io/hostname": self.node}
        pod["volumes"] = [
            {"name": "vllm", "configMap": {"name": "fleet-vllm", "defaultMode": 0o755}},
            {
                "name": "kvtier",
                "secret": {
                    "secretName": f"{self.tier.name}-engine-{runs.generation}",
                    "defaultMode": 0o440,
                },
            },
        ]
        engine = pod["containers"][0]
        engine["image"] = IMAGE
        engine["command"] = ["/opt/vllm/bin/vllm", "serve", runs.model]
        engine["args"] = [
            *("--revision", runs.revision, "--kv-cache-dtype", runs.dtype),
            *("--tensor-parallel-size", str(parse_tier(self.tier.body()).spec.pool.ranks)),
            *("--served-model-name", self.tier.name, "--port", "8000"),
        ]
        engine["env"] = [
            {"name": "FLEET_RATE", "value": f"{self.rate:g}"},
            {"name": "FLEET_WEIGHTS", "value": runs.seed},
        ]
        return body


@contextmanager
def fleet(
    tier: Tier,
    *,
    replicas: int = 2,
    rate: float = 20.0,
    name: str = "fleet",
    in_pool: bool = True,
    node: str = "",
) -> Iterator[Fleet]:
    """A fleet that is not deployed yet. What its pods tell is read along; they go with the tier's
    namespace."""
    state = Path(tier.cluster.facts["state"])
    logs = FleetLogs(state=state, namespace=tier.namespace, deployment=name)
    with logs.followed():
        yield Fleet(
            tier=tier,
            logs=logs,
            name=name,
            replicas=replicas,
            rate=rate,
            in_pool=in_pool,
            node=node,
        )
