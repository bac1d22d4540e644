"""Pods that ask to be injected, and tiers with a status."""

import copy
from typing import Any

import jsonpatch
import webhook_reviews

from kvtier.api.load import parse_tier
from kvtier.generation.identity import generation_id
from kvtier.webhook.injection import Injection, inject

SERVE = ["vllm", "serve", "tiny", "--revision", "r1", "--kv-cache-dtype", "bfloat16"]
SERVE += ["--tensor-parallel-size", "2"]
IN_PROCESS = {"connector": "LMCacheInProcess"}
OLD, NEW = {"model": {"revision": "r1"}}, {"model": {"revision": "r2"}}
METADATA = {"uid": "u1", "generation": 1}


def id_of(changes: dict[str, dict[str, Any]] | None = None, **engine: Any) -> str:
    """The generation of a tier, by its spec."""
    return generation_id(parse_tier(tier(changes, engine=engine or IN_PROCESS)).spec)


def identity_map(**entries: str) -> dict[str, Any]:
    return {"model": {"identity": entries}}


def tier(
    changes: dict[str, dict[str, Any]] | None = None,
    *,
    engine: dict[str, Any] | None = None,
    states: dict[str, str] | None = None,
    seen: int = 1,
    striping: str = "Shard",
    **metadata: Any,
) -> dict[str, Any]:
    """A tier with ``changes`` of its spec and generations in ``states``, by id."""
    document = webhook_reviews.tier(changes, metadata={**METADATA, **metadata})
    document["spec"]["pool"] |= {"engine": engine or IN_PROCESS, "striping": striping}
    rows = [{"id": each, "state": state} for each, state in (states or {}).items()]
    return document | {"status": {"observedGeneration": seen, "generations": rows}}


def live(changes: dict[str, dict[str, Any]] | None = None, **options: Any) -> dict[str, Any]:
    """The same with the spec's own generation Live."""
    document = tier(changes, **options)
    own = generation_id(parse_tier(document).spec)
    document["status"]["generations"].append({"id": own, "state": "Live"})
    return document


def engine(command: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": "vllm:1", "command": command or SERVE, **fields}


def shell(script: str, **fields: Any) -> dict[str, Any]:
    return engine(["sh", "-c"], args=[script], **fields)


def server(name: str = "lmcache", **fields: Any) -> dict[str, Any]:
    command = ["lmcache", "server"]
    return {"name": name, "image": "lmcache:1", "command": command, **fields}


def pod(*containers: dict[str, Any], inits: list[Any] | None = None, **spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "llama-7d9-",
            "labels": {"kvtier.dev/tier": "demo", "pod-template-hash": "7d9"},
            "annotations": {"kvtier.dev/inject": "true"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "llama-7d9", "controller": True}],
        },
        "spec": {"containers": [copy.deepcopy(each) for each in containers or (engine(),)], **spec},
    }
    if inits is not None:
        found["spec"]["initContainers"] = copy.deepcopy(inits)
    return found


def injected(made: dict[str, Any], document: dict[str, Any]) -> Injection | None:
    return inject(made, tier=parse_tier(document), document=document)


def patched(made: dict[str, Any], found: Injection | None) -> Any:
    """The pod as an API server makes it of the patch."""
    assert found is not None
    before = copy.deepcopy(made)
    after = jsonpatch.apply_patch(made, [dict(each) for each in found.operations])
    assert made == before
    return after
