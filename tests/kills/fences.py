"""What holds at every moment of a run, not only in the end."""

from kills.world import When, World
from kvtier.generation.acl import acl_revision, fenced_tokens, key_prefix, users
from kvtier.store.fake_server import FakeServer
from kvtier.store.protocol import Address


def watch_fences(world: World) -> None:
    """Look after every call to a rank; what is wrong ends in ``world.wrong``."""

    def look(address: Address, call: str, when: When) -> None:
        if when != "after" or call == "connect":
            return
        if call in ("acl_setusers", "acl_load"):
            _told_what_is_stored(world, address)
        _proven_is_fenced(world)

    # First: what a strike hits has happened all the same.
    world.stores.strikes.insert(0, look)


def _told_what_is_stored(world: World, address: Address) -> None:
    """No rank is told of a fence, or of anything else, before the record says it."""
    record = world.record()
    if record is None:
        return
    last = world.stores.servers[address].calls[-1]
    wanted = [users(record, rank=rank) for rank in world.ranks()]
    if last.arguments[0] not in wanted:
        world.wrong.add(f"{last.name} of users that the stored record does not have")


def _proven_is_fenced(world: World) -> None:
    """Where the running process has the proof, no fenced token reaches a key."""
    memory, record = world.memory(), world.record()
    if memory is None or record is None:
        return
    for rank, server in world.ranks().items():
        proof = memory.access.get(rank)
        if proof is None or not proof.gone or proof.run_id != server.run_id:
            continue
        if proof.revision != acl_revision(record, rank=rank):
            continue
        for token, generation in fenced_tokens(record).items():
            if _reads(server, token, f"{key_prefix(generation, rank)}@x"):
                world.wrong.add(f"rank {rank}: a fence is proven, and its token reads")


def _reads(server: FakeServer, token: str, key: str) -> bool:
    user = server.users.get(token)
    return user is not None and user.enabled and user.may_run("get", key)
