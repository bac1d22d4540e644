"""The tier that a small vLLM uses, its Secret's files, and what its ranks count."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import valkey
from random_llama_shape import HEAD_DIM, KV_HEADS, LAYERS, WORDS

from certificates import Ca, secret
from kvtier.generation.acl import OPERATOR_USER
from livecluster.fixtures import NewTier
from livecluster.tier import Patch, Tier, merged

SECONDS = 20.0
CHUNK, CHUNKS = 256, 4
REST = 64
"""Tokens behind the last chunk of a prompt: they are computed, whatever is hit."""
TIER: dict[str, Any] = {
    "model": {
        "name": "random/llama",
        "kvCacheDtype": "float32",
        "layout": {"gqa": {"layers": LAYERS, "kvHeads": KV_HEADS, "headDim": HEAD_DIM}},
    },
    # By the link one worker, and 4.5 s for a request: vLLM's workers spin on the cores on which
    # LMCache fetches (2.2 s were not enough), and a stall of four chunks is to be seen.
    "pool": {
        "prefillRate": [{"tokensPerSecond": 500}],
        "maxEngines": 8,
        "engine": {"l1Size": "1Gi"},
    },
    "placement": {"links": [{"domain": "zone", "bitsPerSecond": "30M", "roundTrip": "1ms"}]},
    # With the small tier's tenth of a core its throttling would be timed.
    "store": {"memoryPerRank": "256Mi", "cpu": "1"},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One combination. ``tensor`` is vLLM's workers, which are the tier's ranks; ``servers`` are
    LMCache's, of which there are none in process."""

    name: str
    pool: dict[str, Any]
    tensor: int = 2
    servers: int = 0
    tls: bool = False
    plugin: bool = True


def prompt(number: int, *, chunks: int = CHUNKS) -> list[int]:
    """Token ids, other ones for each number."""
    words = random.Random(number)
    return [words.randrange(WORDS) for _ in range(chunks * CHUNK + REST)]


WARM, *PROMPTS = (prompt(number) for number in range(10))
"""The first one is not looked at: an engine's first answer takes longer, and the plugin connects at
the first lookup, which it lets nobody wait for."""


def started(
    new_tier: NewTier, row: Row, *, ca: Ca | None = None, spec: Patch | None = None
) -> Tier:
    """A ready tier of that row, with a rank for each worker. ``spec`` has more of it."""
    tier = new_tier("chat")
    wanted = merged(merged(TIER, {"pool": {"ranks": row.tensor, **row.pool}}), spec or {})
    if row.tls:
        assert ca is not None
        pair = ca.issue(f"*.{tier.namespace}.svc")
        tier.cluster.apply(secret("chat-tls", pair, ca=ca.pem, namespace=tier.namespace))
        wanted = merged(wanted, {"store": {"tls": {"secretName": "chat-tls"}}})
    tier.apply(wanted)
    tier.wait_ready()
    return tier


def published(tier: Tier) -> dict[str, bytes]:
    """Every file of the engine Secret."""
    return tier.files(tier.body()["status"]["engineSecret"])


@dataclass(frozen=True, slots=True)
class Users:
    """Connections to the ranks as the engine and as kvtier. ``ca`` is PEM, None without TLS."""

    tier: Tier
    ca: str | None

    @property
    def ranks(self) -> list[int]:
        return self.tier.engine().ranks

    @contextmanager
    def engine(self, rank: int) -> Iterator[valkey.Valkey]:
        token = self.tier.engine().token
        with self._session(rank, user=token, password=token) as client:
            yield client

    @contextmanager
    def operator(self, rank: int) -> Iterator[valkey.Valkey]:
        token = self.tier.secret(f"{self.tier.name}-operator")["token"]
        with self._session(rank, user=OPERATOR_USER, password=token) as client:
            yield client

    @contextmanager
    def _session(self, rank: int, *, user: str, password: str) -> Iterator[valkey.Valkey]:
        host, port = self.tier.engine().address(rank)
        # By its address: the name is not one of this machine's.
        client = valkey.Valkey(
            host=host,
            port=port,
            username=user,
            password=password,
            socket_timeout=SECONDS,
            ssl=self.ca is not None,
            ssl_ca_data=self.ca,
            ssl_check_hostname=False,
        )
        try:
            yield client
        finally:
            client.close()


def kept(users: Users) -> int:
    """Objects that all ranks hold."""
    return sum(_info(users, rank, "keyspace").get("db0", {}).get("keys", 0) for rank in users.ranks)


def looked_up(users: Users) -> list[int]:
    """By rank, keys that were asked for and found, so far."""
    return [int(_info(users, rank, "stats")["keyspace_hits"]) for rank in users.ranks]


def _info(users: Users, rank: int, section: str) -> dict[str, Any]:
    with users.engine(rank) as client:
        found: dict[str, Any] = client.info(section)
    return found


@contextmanager
def fenced(users: Users) -> Iterator[None]:
    """The engine's user may touch no key of any rank, in its running sessions too."""
    engine = users.tier.engine()
    with ExitStack() as stack:
        for rank in users.ranks:
            client = stack.enter_context(users.operator(rank))
            prefix = engine.prefix(rank)
            client.execute_command("ACL", "SETUSER", engine.token, "resetkeys")
            stack.callback(client.execute_command, "ACL", "SETUSER", engine.token, f"~{prefix}@*")
        yield
