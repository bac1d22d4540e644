"""What users and accidents do to a tier while the operator is struck."""

from collections.abc import Awaitable, Callable

from kills.generations import GENERATIONS, apply, of
from kills.world import KEY, World
from kvtier.cluster.protocol import (
    CONFIGMAP,
    NODE,
    POD,
    SECRET,
    SERVICE,
    STATEFULSET,
    TIER,
)
from kvtier.plan.probing import REQUESTED
from kvtier.render.names import POOL_LABEL
from kvtier.store.protocol import REVISION_USER
from small_tier import spec

NAMESPACE, NAME = KEY
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
BIGGER = "512Mi"
OTHERS_SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"namespace": NAMESPACE, "name": f"{NAME}-r1"},
    "spec": {"selector": {"app": "somebody-else"}, "ports": [{"port": 80}]},
}

Scenario = Callable[[World], Awaitable[None]]


async def create(world: World) -> None:
    world.apply(spec())
    await world.settle()


async def create_where_a_name_is_taken(world: World) -> None:
    world.cluster.seed(OTHERS_SERVICE)
    world.apply(spec())
    await world.settle()
    world.cluster.remove(SERVICE, NAMESPACE, OTHERS_SERVICE["metadata"]["name"])
    await world.settle()


async def create_paused(world: World) -> None:
    world.apply({**spec(), "paused": True})
    await world.settle()
    world.apply({**spec(), "paused": False})
    await world.settle()


async def change_live(world: World) -> None:
    world.apply(spec(eviction="LFU"))
    await world.settle()


async def change_and_restart(world: World) -> None:
    world.apply(spec(memoryPerRank=BIGGER))
    await world.settle()


async def change_several(world: World) -> None:
    world.apply(spec(memoryPerRank=BIGGER, eviction="LFU", labels={"team": "search"}))
    await world.settle()


async def change_paused(world: World) -> None:
    changed = spec(memoryPerRank=BIGGER, eviction="LFU")
    world.apply({**changed, "paused": True})
    await world.settle()
    world.apply({**changed, "paused": False})
    await world.settle()


async def change_twice(world: World) -> None:
    """The second change comes before anybody has looked at the first."""
    world.apply(spec(memoryPerRank=BIGGER))
    world.apply(spec(memoryPerRank="768Mi"))
    await world.settle()


async def roll_one(world: World) -> None:
    _ask_for_restart(world, 0)
    await world.settle()


async def roll_all(world: World) -> None:
    for rank in range(2):
        _ask_for_restart(world, rank)
    await world.settle()


def _ask_for_restart(world: World, rank: int) -> None:
    template = {"metadata": {"annotations": {RESTARTED_AT: world.at()}}}
    world.cluster.edit(STATEFULSET, NAMESPACE, f"{NAME}-r{rank}", {"spec": {"template": template}})


async def edit_children(world: World) -> None:
    """Somebody edits one child of each kind."""
    rank = {"kvtier.dev/rank": "7"}
    grace = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 99}}}}
    world.cluster.edit(STATEFULSET, NAMESPACE, f"{NAME}-r0", grace)
    world.cluster.edit(SERVICE, NAMESPACE, f"{NAME}-r1", {"spec": {"selector": rank}})
    world.cluster.edit(CONFIGMAP, NAMESPACE, f"{NAME}-valkey", {"data": {"valkey.conf": "x"}})
    await world.settle()


async def delete_children(world: World) -> None:
    for kind, name in (
        (STATEFULSET, f"{NAME}-r1"),
        (SERVICE, f"{NAME}-r0"),
        (CONFIGMAP, f"{NAME}-valkey"),
    ):
        world.cluster.remove(kind, NAMESPACE, name)
    await world.settle()


def delete_secret(which: str) -> Scenario:
    async def scenario(world: World) -> None:
        (name,) = (
            each["metadata"]["name"]
            for each in world.cluster.all(SECRET)
            if each["metadata"]["name"].startswith(f"{NAME}-{which}")
        )
        world.cluster.remove(SECRET, NAMESPACE, name)
        await world.resync()

    return scenario


async def delete_pods(world: World) -> None:
    for rank in range(2):
        world.cluster.remove(POD, NAMESPACE, f"{NAME}-r{rank}-0")
    await world.resync()


async def lose_users(world: World) -> None:
    """A rank runs with the users of an older file, and with settings of somebody's own."""
    server = next(iter(world.stores.servers.values()))
    for user in [*server.users]:
        if user not in ("operator", "default"):
            del server.users[user]
    assert REVISION_USER not in server.users
    server.set_config({"maxmemory": "1mb", "maxmemory-policy": "noeviction"})
    await world.resync()


async def engines_choose(world: World) -> None:
    """The ranks, which hold nothing, follow the first engine."""
    place(world)
    add_engine(world, "engine-0", ZONES["zone-b"])
    await world.settle()


async def engines_leave(world: World) -> None:
    """First they choose a zone, then they are all in another."""
    await engines_choose(world)
    world.cluster.remove(POD, NAMESPACE, "engine-0")
    add_engine(world, "engine-1", ZONES["zone-a"])
    await world.settle()


async def probe_on_request(world: World) -> None:
    """A tier that was measured is measured again, because somebody asks."""
    await engines_choose(world)
    world.cluster.edit(TIER, *KEY, {"metadata": {"annotations": {REQUESTED: world.at()}}})
    await world.settle()


async def create_beside_engines(world: World) -> None:
    place(world)
    add_engine(world, "engine-0", ZONES["zone-b"])
    await create(world)


ZONES = {"zone-a": "node-a", "zone-b": "node-b"}


def place(world: World) -> None:
    """A node in each of two zones."""
    for zone, name in ZONES.items():
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": world.at()}]
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        world.cluster.seed(node)
        world.cluster.edit(NODE, "", name, {"status": {"conditions": ready}})


def add_engine(world: World, name: str, node: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": world.at()}
    world.cluster.seed(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": name, "labels": {POOL_LABEL: NAME}},
            "spec": {"nodeName": node, "containers": [{"name": "engine"}]},
            "status": {"phase": "Running", "conditions": [ready]},
        }
    )


async def delete(world: World) -> None:
    world.cluster.remove(TIER, *KEY)
    await world.settle()


async def delete_and_create_again(world: World) -> None:
    """Under the same name at once, while the garbage collector has not come to the old one."""
    world.collect_after(0.5)
    world.cluster.remove(TIER, *KEY)
    world.apply(spec(eviction="LFU"))
    await world.settle()


FROM_NOTHING: dict[str, Scenario] = {
    each.__name__: each
    for each in (create, create_where_a_name_is_taken, create_paused, create_beside_engines)
}
FROM_READY: dict[str, Scenario] = {
    **{
        each.__name__: each
        for each in (
            *(change_live, change_and_restart, change_several, change_paused, change_twice),
            *(roll_one, roll_all),
            *(edit_children, delete_children, delete_pods, lose_users),
            *(engines_choose, engines_leave, probe_on_request),
        )
    },
    **{f"delete_secret_{which}": delete_secret(which) for which in ("acl", "operator", "engine")},
    **{each.__name__: each for each in (delete, delete_and_create_again)},
}
SCENARIOS: dict[str, Scenario] = FROM_NOTHING | FROM_READY | GENERATIONS


async def prepared(name: str) -> bytes:
    """The state that the scenario begins with."""
    world = World()
    if name in FROM_READY:
        await create(world)
    if name in GENERATIONS:
        await apply(world, of("r1"))
    return world.save()
