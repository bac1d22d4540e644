"""Controllers on this machine that work on the cluster, what users do meanwhile, and what is left.

The real cluster's part of the kill campaign; tests/kills has the same on fakes.
"""

import asyncio
import base64
import json
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from live_roll import HANDED_ON, files_brought, is_alone, roll_generation
from struck_controller import DEAD

from kvtier.generation.acl import OPERATOR_USER, REVISION_USER, acl_revision, users
from kvtier.generation.record import from_json
from kvtier.render.names import RECORD_KEY, TOKEN_KEY, acl_name
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Credentials
from livecluster.api import Object, is_ready
from livecluster.cluster import LiveCluster
from livecluster.tier import CHILD_KINDS, READY_SECONDS, Tier
from livecluster.waiting import eventually
from programs import CHECKOUT, end

LAUNCHER = Path(__file__).parent / "struck_controller.py"
NAME = "chat"
ROLLED_SECONDS = 300.0
QUIET_SECONDS = 3.0
"""So long nothing changes once all is as it should be; the operator looks again after 5 s at most
while it is not."""
BIGGER = "80Mi"
MASKS = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"kvtt-[0-9a-f]{48}"), "<token>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    # A hash of the template, with the time of a restart that a person asked for.
    (re.compile(r'(?<="controller-revision-hash": ")[^"]+'), "<revision>"),
    (re.compile(r"\bnode-\d\b"), "<node>"),
    (re.compile(r"\bzone=zone-\w\b"), "<zone>"),
)
OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink")


@dataclass(slots=True)
class Controller:
    """One process of ``kvtier controller``, as it was started."""

    process: subprocess.Popen[bytes]
    port: int
    calls: Path
    log: Path

    def is_watching(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                return True
        except (urllib.error.HTTPError, OSError):
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            return False

    def arm(self) -> None:
        """From now on its calls count."""
        self.process.send_signal(signal.SIGUSR1)

    def made(self) -> list[str]:
        """The calls that counted."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@dataclass(slots=True)
class Ground:
    """A namespace of the cluster, and all that was seen in it: pods by name, tokens by owner."""

    cluster: LiveCluster
    namespace: str
    home: Path
    pods: dict[str, set[str]] = field(default_factory=dict)
    tokens: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    rolls: bool = False
    """Whether a generation goes, and with it users from the ranks' files."""

    @property
    def tier(self) -> Tier:
        return Tier(cluster=self.cluster, namespace=self.namespace, name=NAME)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take down every pod that is made and every token that a Secret ever has."""
        with ExitStack() as stack:
            for plural, seen in (("pods", self._saw_pod), ("secrets", self._saw_secret)):
                for obj in self.cluster.api.list(plural, self.namespace):
                    if plural == "secrets":
                        seen(obj)
                stack.enter_context(self.cluster.api.watch(plural, self.namespace, seen=seen))
            yield

    @contextmanager
    def controller(
        self, *, index: int = -1, side: str = "before", lease: str
    ) -> Iterator[Controller]:
        """A controller of this namespace only, watching; killed at the end if it still lives."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        calls, log = (self.home / f"{port}.{what}" for what in ("calls", "log"))
        with log.open("w") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, str(LAUNCHER), str(calls), str(index), side),
                    *("controller", f"--namespace={self.namespace}"),
                    *(f"--lease-namespace={self.namespace}", f"--lease-name={lease}"),
                    *(f"--listen=127.0.0.1:{port}", "--resync=60s"),
                ],
                env=self.cluster.environment,
                cwd=CHECKOUT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started = Controller(process=process, port=port, calls=calls, log=log)
        try:
            eventually(started.is_watching, seconds=READY_SECONDS, what="the controller watches")
            yield started
        finally:
            end(process)

    def objects(self) -> list[Object]:
        """The tier, if there is one, and everything of kvtier's in the namespace."""
        found = [obj for obj in (self.tier.find(),) if obj is not None]
        for plural in (*CHILD_KINDS, "pods"):
            listed = self.cluster.api.list(plural, self.namespace)
            found += [
                obj | {"kind": plural}
                for obj in listed
                if obj["metadata"].get("labels", {}).get("kvtier.dev/tier-name") == NAME
            ]
        return found

    def settle(self, *, gone: bool, until: Callable[[], bool] = lambda: False) -> None:
        """Wait until the tier is Ready, or nothing of it is left, and nothing changes any more.

        Or until something else is true, which is looked at all the time.
        """
        before: list[str] = []
        since = time.monotonic()

        def settled() -> bool:
            nonlocal before, since
            now = sorted(obj["metadata"]["resourceVersion"] for obj in self.objects())
            right = not now if gone else self._is_right()
            if now != before or not right:
                before, since = now, time.monotonic()
            quiet = time.monotonic() - since > QUIET_SECONDS
            return (quiet and not (self.rolls and _users(self))) or until()

        eventually(
            settled,
            seconds=ROLLED_SECONDS if self.rolls else READY_SECONDS,
            what="the tier is settled",
            detail=lambda: [f"{_name(obj)} {obj.get('status')}" for obj in self.objects()],
        )

    def _is_right(self) -> bool:
        ready = self.tier.condition("Ready").get("status") == "True"
        return ready and is_alone(self.tier)

    def brings_files(self) -> bool:
        return not is_alone(self.tier) or bool(_users(self))

    def _saw_pod(self, obj: Object) -> None:
        if obj["metadata"].get("labels", {}).get("kvtier.dev/tier-name") == NAME:
            self.pods.setdefault(obj["metadata"]["name"], set()).add(obj["metadata"]["uid"])

    def _saw_secret(self, obj: Object) -> None:
        metadata, data = obj["metadata"], obj.get("data") or {}
        owner = "".join(each["uid"] for each in metadata.get("ownerReferences", []))
        found: dict[str, str] = {}
        if RECORD_KEY in data:
            record = from_json(base64.b64decode(data[RECORD_KEY]))
            found = {"operator": record.operator_token}
            found |= {f"engine {entry.id}": entry.token for entry in record.generations}
            others = {"probe": record.probe_token, "limiter": record.limiter_token}
            found |= {role: token for role, token in others.items() if token is not None}
        elif TOKEN_KEY in data:
            suffix = metadata["name"].rpartition("-")[2]
            role = suffix if suffix in ("operator", "probe", "limiter") else f"engine {suffix}"
            found = {role: base64.b64decode(data[TOKEN_KEY]).decode()}
        for role, token in found.items():
            self.tokens.setdefault((owner, role), set()).add(token)


# What users do


def create(ground: Ground) -> None:
    ground.tier.apply()


def change_live(ground: Ground) -> None:
    ground.tier.patch({"store": {"eviction": "LFU"}})


def change_several(ground: Ground) -> None:
    ground.tier.patch({"store": {"memoryPerRank": BIGGER, "eviction": "LFU"}})


def roll_one(ground: Ground) -> None:
    ground.tier.kubectl("rollout", "restart", f"statefulset/{NAME}-r0")


def roll_to_another(ground: Ground) -> None:
    roll_generation(ground.tier)


def delete(ground: Ground) -> None:
    ground.tier.kubectl("delete", "kvt", NAME, "--wait=false")


def delete_and_create_again(ground: Ground) -> None:
    ground.tier.kubectl("delete", "kvt", NAME, "--wait=false")
    ground.tier.apply({"store": {"eviction": "LFU"}})


ACTIONS: Mapping[str, Callable[[Ground], None]] = {
    each.__name__: each
    for each in (
        *(create, change_live, change_several, roll_one, roll_to_another),
        *(delete, delete_and_create_again),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was left, in a form that two namespaces can be compared in."""

    objects: dict[str, str]
    pods_made: dict[str, int]
    wrong: tuple[str, ...]
    calls: int
    struck: bool

    def difference(self, expected: "Outcome") -> str:
        lines = list(self.wrong)
        for part in ("objects", "pods_made"):
            mine, theirs = getattr(self, part), getattr(expected, part)
            lines += [
                f"{name}: {mine.get(name)} instead of {theirs.get(name)}"
                for name in sorted(mine.keys() | theirs.keys())
                if mine.get(name) != theirs.get(name)
            ]
        return "\n".join(lines)


def run(ground: Ground, action: str, *, index: int = -1, side: str = "before") -> Outcome:
    """One scenario, with a controller that dies at a call, and another one that goes on.

    After a death before a call the next process takes another Lease and so starts at once; after
    one behind a call it waits until the dead one's Lease is over.
    """
    if action != "create":
        with ground.controller(lease="first"):
            ground.tier.apply()
            ground.settle(gone=False)
    ground.rolls = action == "roll_to_another"
    files = files_brought(ground.tier, due=ground.brings_files) if ground.rolls else nullcontext()
    with ground.watched(), files:
        with ground.controller(index=index, side=side, lease="second") as doomed:
            if action != "create":
                ground.settle(gone=False)
            doomed.arm()
            ACTIONS[action](ground)
            if index < 0:
                ground.settle(gone=action == "delete")
                struck = False
            else:
                struck = _dies_or_settles(doomed, ground, gone=action == "delete")
            calls = len(doomed.made())
        if struck:
            with ground.controller(lease="third" if side == "before" else "second"):
                ground.settle(gone=action == "delete")
    return Outcome(
        objects={_name(obj): _canonical(ground, obj) for obj in ground.objects()},
        pods_made={name: len(uids) for name, uids in ground.pods.items()},
        wrong=(*_orphans(ground), *_tokens(ground), *_users(ground)),
        calls=calls,
        struck=struck,
    )


def _dies_or_settles(doomed: Controller, ground: Ground, *, gone: bool) -> bool:
    """Whether it died at its call; a run may take fewer calls than the undisturbed one."""

    ground.settle(gone=gone, until=lambda: doomed.process.poll() is not None)
    code = doomed.process.poll()
    assert code in (None, DEAD), doomed.log.read_text()[-2000:]
    return code == DEAD


def _name(obj: Object) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _canonical(ground: Ground, obj: Object) -> str:
    """What kvtier wrote of it, and whether it is ready; without what is of one run only."""
    shown = json.loads(json.dumps(obj))
    for name in OF_THE_SERVER:
        shown["metadata"].pop(name, None)
    if obj["kind"] == "pods":
        metadata = shown["metadata"]
        metadata.pop("generateName", None)
        metadata.get("annotations", {}).pop(HANDED_ON, None)
        images = [each["image"] for each in obj["spec"]["containers"]]
        resources = [each["resources"] for each in obj["spec"]["containers"]]
        shown = {"metadata": metadata, "images": images, "resources": resources}
        shown["ready"] = is_ready(obj)
    elif obj["kind"] in CHILD_KINDS:
        shown.pop("status", None)
        for name in ("clusterIP", "clusterIPs"):
            (shown.get("spec") or {}).pop(name, None)
    if obj["kind"] == "secrets":
        shown["data"] = {
            key: base64.b64decode(value).decode(errors="backslashreplace")
            for key, value in obj["data"].items()
        }
    text = json.dumps(shown, sort_keys=True).replace(ground.namespace, "<namespace>")
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return text


def _orphans(ground: Ground) -> list[str]:
    objects = ground.objects()
    uids = {obj["metadata"]["uid"] for obj in objects}
    return [
        f"{_name(obj)} is orphaned"
        for obj in objects
        if obj["kind"] != "KVCacheTier"
        and not any(each["uid"] in uids for each in obj["metadata"].get("ownerReferences", []))
    ]


def _tokens(ground: Ground) -> list[str]:
    return [
        f"{len(tokens)} {role} tokens were made for one tier"
        for (_, role), tokens in ground.tokens.items()
        if len(tokens) != 1
    ]


def _users(ground: Ground) -> list[str]:
    """Every rank has the users of the record and the file of now, by its own word."""
    if ground.tier.find() is None:
        return []
    data = ground.tier.secret(acl_name(NAME))
    record = from_json(data[RECORD_KEY])
    credentials = Credentials(username=OPERATOR_USER, password=record.operator_token)
    wrong = []

    async def ask(host: str) -> tuple[set[str], frozenset[str]]:
        async with connector()(Address(host=host), credentials) as store:
            revision = await store.acl_getuser(REVISION_USER)
            return set(await store.acl_users()), revision.passwords if revision else frozenset()

    for rank, pod in ground.tier.pods().items():
        names, revision = asyncio.run(ask(pod["status"]["podIP"]))
        if names != {*users(record, rank=rank), REVISION_USER}:
            wrong.append(f"rank {rank} has other users than the record")
        if revision != {acl_revision(record, rank=rank)}:
            wrong.append(f"rank {rank} has not loaded its ACL file")
    return wrong


@contextmanager
def ground(cluster: LiveCluster, *, label: str, home: Path) -> Iterator[Ground]:
    """A namespace of one run."""
    namespace = f"kill-{label.replace('_', '-')}-{secrets.token_hex(2)}"
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.apply(document)
    try:
        yield Ground(cluster=cluster, namespace=namespace, home=home)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
