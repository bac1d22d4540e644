"""From one generation to the next while the operator is struck."""

from collections.abc import Awaitable, Callable
from typing import Any

from kills.fences import watch_fences
from kills.world import KEY, World
from kvtier.api.types import KVCacheTierSpec
from kvtier.cluster.protocol import POD, SECRET
from kvtier.generation.acl import key_prefix
from kvtier.generation.identity import generation_id
from kvtier.render.names import POOL_LABEL, acl_name, engine_secret_name
from small_tier import spec

NAMESPACE, NAME = KEY
DRAIN = "30s"
"""Two looks: so long nothing else happens, and less than makes a world quiet."""


def of(revision: str, *, paused: bool = False, **changes: Any) -> dict[str, Any]:
    """The small tier with another revision or salt, and whatever of ``spec.rollout``."""
    document = {**spec(), "rollout": {"drainTimeout": DRAIN}, "paused": paused}
    document["model"] |= {"revision": revision}
    if "salt" in changes:
        document["model"]["salt"] = changes.pop("salt")
    document["rollout"] |= changes
    return document


def named(document: dict[str, Any]) -> str:
    return generation_id(KVCacheTierSpec.model_validate(document))


A, B = named(of("r1")), named(of("r2"))


def start(world: World, name: str, *, revision: str, generation: str | None) -> None:
    """A Ready engine with a generation's Secret, or without one."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": world.at()}
    mounts = [engine_secret_name(NAME, each) for each in filter(None, [generation])]
    command = ["vllm", "serve", "tiny", "--revision", revision, "--tensor-parallel-size", "2"]
    command += ["--kv-cache-dtype", "bfloat16"]
    container = {
        "name": "vllm",
        "command": command,
        "volumeMounts": [{"name": each, "mountPath": "/kvtier"} for each in mounts],
    }
    volumes = [{"name": each, "secret": {"secretName": each}} for each in mounts]
    world.cluster.seed(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": name, "labels": {POOL_LABEL: NAME}},
            "spec": {"containers": [container], "volumes": volumes},
            "status": {"phase": "Running", "conditions": [ready]},
        }
    )


def end(world: World, name: str) -> None:
    world.cluster.remove(POD, NAMESPACE, name)


def fill(world: World, generation: str) -> None:
    """A chunk on every rank."""
    for rank, server in enumerate(world.rank_servers()):
        server.keys.add(f"{key_prefix(generation, rank)}@chunk")


async def apply(world: World, document: dict[str, Any]) -> None:
    world.apply(document)
    await world.settle()


async def roll(world: World) -> None:
    start(world, "old", revision="r1", generation=A)
    fill(world, A)
    await apply(world, of("r2"))
    start(world, "new", revision="r2", generation=B)
    await world.settle()
    assert not any(server.keys for server in world.rank_servers())
    end(world, "old")
    await world.settle()
    assert list(world.states()) == [B]


async def roll_back(world: World) -> None:
    """Before any engine uses the new one; then that drains, and goes."""
    start(world, "old", revision="r1", generation=A)
    fill(world, A)
    await apply(world, of("r2"))
    await apply(world, of("r1"))
    assert world.states() == {A: "Live"}
    assert all(server.keys for server in world.rank_servers()), "its cache is still there"


async def poison(world: World) -> None:
    """A pod of other weights, and what follows when it is gone."""
    start(world, "right", revision="r1", generation=A)
    start(world, "wrong", revision="r2", generation=A)
    fill(world, A)
    await world.settle()
    assert world.states() == {A: "Purged"}
    end(world, "wrong")
    await world.settle()
    assert world.states() == {A: "Live"}
    assert not any(server.keys for server in world.rank_servers())


async def poison_paused(world: World) -> None:
    await apply(world, of("r1", paused=True))
    start(world, "wrong", revision="r2", generation=A)
    await world.settle()
    end(world, "wrong")
    await world.settle()
    assert world.states() == {A: "Purged"}
    await apply(world, of("r1"))
    assert world.states() == {A: "Live"}


async def change_salt(world: World) -> None:
    start(world, "old", revision="r1", generation=A)
    fill(world, A)
    await apply(world, of("r1", salt="2"))
    end(world, "old")
    await world.settle()
    assert list(world.states().values()) == ["Live"]
    assert not any(server.keys for server in world.rank_servers())


async def renew_credentials(world: World) -> None:
    start(world, "old", revision="r1", generation=A)
    fill(world, A)
    await apply(world, of("r1", credentialEpoch=1))
    assert all(server.keys for server in world.rank_servers())


async def revoke_credentials(world: World) -> None:
    await apply(world, of("r1", credentialEpoch=1, revocation="Immediate"))


async def make_generation_for_drifted(world: World) -> None:
    await apply(world, of("r1", onPoolDrift="NewGeneration"))
    start(world, "ahead", revision="r2", generation=None)
    await world.settle()
    assert world.states() == {A: "Live", B: "Pending"}
    end(world, "ahead")
    await world.settle()
    assert world.states() == {A: "Live"}


async def lose_record_in_a_fence(world: World) -> None:
    start(world, "wrong", revision="r2", generation=A)
    fill(world, A)
    await world.settle()
    world.cluster.remove(SECRET, NAMESPACE, acl_name(NAME))
    await world.resync()
    assert world.states() == {A: "Purged"}
    end(world, "wrong")
    await world.settle()
    assert world.states() == {A: "Live"}
    assert not any(server.keys for server in world.rank_servers())


def _watched(scenario: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    async def watched(world: World) -> None:
        # It makes several tokens: how many, the undisturbed run says.
        world.rotates = True
        watch_fences(world)
        await scenario(world)

    return watched


GENERATIONS = {
    each.__name__: _watched(each)
    for each in (
        *(roll, roll_back, poison, poison_paused, change_salt),
        *(renew_credentials, revoke_credentials, make_generation_for_drifted),
        lose_record_in_a_fence,
    )
}
