"""Engines that run a model and mount a generation's Secret, for the reconciler on fakes."""

import base64
from typing import Any

from tier_harness import KEY, Operator, spec

from kvtier.api.types import KVCacheTierSpec
from kvtier.cluster.protocol import POD, SECRET
from kvtier.generation.entry import GenerationEntry
from kvtier.generation.identity import generation_id
from kvtier.generation.record import Record, from_json
from kvtier.render.names import POOL_LABEL, RECORD_KEY, acl_name
from kvtier.store.fake import FakeServer

NAMESPACE, NAME = KEY
UNIT = 5.0
"""Seconds: a drain takes 60 of these, so that a test of an hour need not look for an hour."""


def revised(
    revision: str, *, rollout: dict[str, Any] | None = None, **model: Any
) -> dict[str, Any]:
    """The small tier's spec with another revision, and whatever else of the model."""
    document = spec()
    document["model"] |= {"revision": revision, **model}
    document["rollout"] = {"drainTimeout": f"{60 * UNIT:g}s", **(rollout or {})}
    return document


def id_of(document: dict[str, Any]) -> str:
    return generation_id(KVCacheTierSpec.model_validate(document))


A = id_of(revised("r1"))
B = id_of(revised("r2"))


def engine(
    operator: Operator,
    name: str,
    *,
    revision: str,
    generation: str | None,
    ready: bool = True,
    arguments: tuple[str, ...] = (),
    config_map: str | None = None,
    started: str | None = None,
) -> None:
    """A pod of the pool that runs a revision of the model, with a generation's Secret or none.

    Its variables are those of ``config_map``; ``started`` is when its container was (RFC 3339).
    """
    volumes = [
        {"name": "kvtier", "secret": {"secretName": f"{NAME}-engine-{each}"}}
        for each in filter(None, [generation])
    ]
    command = ["vllm", "serve", "tiny", "--revision", revision, "--tensor-parallel-size", "2"]
    command += ["--kv-cache-dtype", "bfloat16"]
    container = {
        "name": "vllm",
        "image": "example.org/vllm:1",
        "command": [*command, *arguments],
        "envFrom": [{"configMapRef": {"name": each}} for each in filter(None, [config_map])],
        "volumeMounts": [{"name": each["name"], "mountPath": "/kvtier"} for each in volumes],
    }
    since = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
    operator.cluster.seed(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": name, "labels": {POOL_LABEL: NAME}},
            "spec": {"nodeName": "node-0", "containers": [container], "volumes": volumes},
            "status": {
                "phase": "Running",
                "conditions": [condition],
                "containerStatuses": [
                    {"name": "vllm", "state": {"running": {"startedAt": each}}}
                    for each in filter(None, [started])
                ],
            },
        }
    )


def remove(operator: Operator, *names: str) -> None:
    for name in names:
        operator.cluster.remove(POD, NAMESPACE, name)


def record(operator: Operator) -> Record:
    secret = operator.cluster.peek(SECRET, NAMESPACE, acl_name(NAME))
    assert secret is not None
    return from_json(base64.b64decode(secret["data"][RECORD_KEY]))


def states(operator: Operator) -> dict[str, str]:
    return {entry.id: entry.state.value for entry in record(operator).generations}


def entry(operator: Operator, generation: str) -> GenerationEntry:
    found = record(operator).find(generation)
    assert found is not None
    return found


def servers(operator: Operator) -> list[FakeServer]:
    return [operator.server(f"{NAME}-r{rank}-0") for rank in range(2)]


def may_read(operator: Operator, token: str, generation: str) -> list[bool]:
    """By rank: whether the user with this token reaches its generation's keys there."""
    found = []
    for rank, server in enumerate(servers(operator)):
        user = server.users.get(token)
        key = f"kvt-{generation}-r{rank}@x"
        found.append(user is not None and user.enabled and user.may_run("get", key))
    return found


async def later(operator: Operator, seconds: float) -> None:
    """Time passes, with the operator's looks in between; kubelets bring what changed."""
    passed, step = 0.0, min(seconds / 5, 25.0)
    while passed < seconds:
        await operator.clock.advance(min(step, seconds - passed))
        passed += step
        operator.deliver_users()
        operator.queue.add(KEY)
        await operator.settle()
