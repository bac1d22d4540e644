"""One KVCacheTier in a namespace of its own, as a person has it."""

import base64
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvtier.api.load import parse_tier
from kvtier.breakeven.tier import chunk_bytes_per_rank
from livecluster.api import Object, condition
from livecluster.cluster import LiveCluster
from livecluster.ranks import Engine, Resolve
from livecluster.waiting import eventually

SMALL: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "tier.yaml").read_text())
CHILD_KINDS = ("statefulsets", "services", "configmaps", "secrets")
READY_SECONDS = 90.0
"""A bring-up takes about 3 s on an idle machine, which the bench holds; this is for a busy one."""

Patch = Mapping[str, Any]


def manifest(*, name: str, namespace: str, spec: Patch | None = None) -> Object:
    """The small tier with ``spec`` merged into it."""
    document = copy.deepcopy(SMALL)
    document["metadata"] = {"name": name, "namespace": namespace}
    document["spec"] = merged(document["spec"], spec or {})
    return document


def merged(value: Any, patch: Any) -> Any:
    """The document with the patch in it, mapping by mapping; everything else is replaced."""
    if not isinstance(value, dict) or not isinstance(patch, Mapping):
        return patch
    return {
        key: merged(value.get(key), patch[key]) if key in patch else value[key]
        for key in value.keys() | patch.keys()
    }


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier by its name; whether it exists is another matter."""

    cluster: LiveCluster
    namespace: str
    name: str

    def apply(self, spec: Patch | None = None) -> None:
        self.cluster.apply(manifest(name=self.name, namespace=self.namespace, spec=spec))

    def patch(self, spec: Patch) -> None:
        self.kubectl("patch", "kvt", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def kubectl(self, *arguments: str) -> str:
        verb, *rest = arguments
        # Before the rest: behind a "--" it would be the command's.
        return self.cluster.kubectl(verb, "-n", self.namespace, *rest)

    def kvtier(self, *arguments: str) -> str:
        """What kvtier's own command printed; raises Failed if it exits with anything but 0."""
        return self.cluster.run("kvtier", *arguments, "-n", self.namespace)

    def find(self) -> Object | None:
        return self.cluster.api.get("kvcachetiers", self.namespace, self.name)

    def body(self) -> Object:
        found = self.find()
        assert found is not None, f"tier {self.namespace}/{self.name} is gone"
        return found

    def condition(self, kind: str) -> Mapping[str, Any]:
        """The condition, empty while it is about an older spec than the one applied."""
        body = self.body()
        shown = condition(body, kind)
        current = shown.get("observedGeneration") == body["metadata"]["generation"]
        return shown if current else {}

    def wait(
        self, kind: str, status: str, *, reason: str = "", seconds: float = READY_SECONDS
    ) -> Mapping[str, Any]:
        """The condition, once it has this status (and reason) for the current spec."""

        def reached() -> Mapping[str, Any] | None:
            shown = self.condition(kind)
            right = shown.get("status") == status and reason in ("", shown["reason"])
            return shown if right else None

        return eventually(
            reached,
            seconds=seconds,
            what=f"{self.name}: {kind} is {status} {reason}",
            detail=lambda: [
                {name: each[name] for name in ("type", "status", "reason", "message")}
                for each in (self.body().get("status") or {}).get("conditions", [])
            ],
        )

    def wait_ready(self, *, seconds: float = READY_SECONDS) -> None:
        self.wait("Ready", "True", reason="TierReady", seconds=seconds)

    def child(self, plural: str, name: str) -> Object | None:
        return self.cluster.api.get(plural, self.namespace, name)

    def children(self) -> dict[tuple[str, str], Object]:
        """Every object in the namespace that the tier controls, by kind and name."""
        uid = self.body()["metadata"]["uid"]
        return {
            (plural, obj["metadata"]["name"]): obj
            for plural in CHILD_KINDS
            for obj in self.cluster.api.list(plural, self.namespace)
            if any(
                owner["uid"] == uid and owner.get("controller")
                for owner in obj["metadata"].get("ownerReferences", [])
            )
        }

    def pods(self) -> dict[int, Object]:
        """The rank pods by rank."""
        pods = self.cluster.api.list(
            "pods", self.namespace, selector=f"kvtier.dev/tier-name={self.name}"
        )
        return {int(pod["metadata"]["labels"]["kvtier.dev/rank"]): pod for pod in pods}

    def containers(self) -> dict[int, str]:
        """The running container of each rank: another id is another, empty Valkey."""
        return {
            rank: status["containerID"]
            for rank, pod in sorted(self.pods().items())
            for status in pod.get("status", {}).get("containerStatuses", [])
            if "running" in status["state"]
        }

    def secret(self, name: str) -> dict[str, str]:
        """Every value of a Secret as text; a byte that is none is written as Python does."""
        files = self.files(name)
        return {key: value.decode(errors="backslashreplace") for key, value in files.items()}

    def files(self, name: str) -> dict[str, bytes]:
        """Every value of a Secret, as a pod has it that mounts it."""
        found = self.child("secrets", name)
        assert found is not None, f"Secret {name} does not exist"
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    def tokens(self) -> dict[str, dict[str, str]]:
        """The contents of all the tier's Secrets."""
        names = [name for plural, name in self.children() if plural == "secrets"]
        return {name: self.secret(name) for name in sorted(names)}

    def events(self, reason: str) -> list[Object]:
        """The tier's events with this reason, so far."""
        return [
            event
            for event in self.cluster.api.list("events", self.namespace)
            if event["reason"] == reason and event["involvedObject"]["name"] == self.name
        ]

    def warning(self, reason: str) -> str:
        """The message of the one Warning with this reason; events are told after the status."""
        eventually(lambda: self.events(reason), seconds=10, what=f"an event {reason}")
        (event,) = self.events(reason)
        assert event["type"] == "Warning"
        message: str = event["message"]
        return message

    def engine(self, *, resolve: Resolve | None = None) -> Engine:
        """A client from the published Secret. Names are looked up in the API, unless told how.

        The tier must be ready. It is waited for what is not kvtier's: kube-proxy, which passes on
        a Service's address a second after the rank behind it is ready.
        """
        body = self.body()
        files = self.secret(body["status"]["engineSecret"])
        engine = Engine(
            json.loads(files["connection.json"]),
            model=body["spec"]["model"]["name"],
            chunk_bytes=chunk_bytes_per_rank(parse_tier(body).spec),
            resolve=resolve or self._cluster_ip,
        )
        eventually(engine.reaches_every_rank, seconds=15, what="every rank's Service answers")
        return engine

    def _cluster_ip(self, host: str) -> str:
        service = self.child("services", host.partition(".")[0])
        assert service is not None, f"Service of {host} does not exist"
        return str(service["spec"]["clusterIP"])
