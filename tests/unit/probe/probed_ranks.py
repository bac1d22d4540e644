"""Real ranks with the rendered ACL file, and the configuration of a probe of them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import valkey
from valkey_servers import Server, running_server

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.acl import PROBE_USER, acl_file, probe_prefix
from kvtier.generation.record import Record, new_record
from kvtier.probe.config import ProbeConfig
from kvtier.redact import new_token
from kvtier.store.address import RankAddress
from small_tier import spec

SIZE = 65_536
SETTINGS = {"maxmemory": "256mb", "maxmemory-policy": "allkeys-lru"}


@dataclass
class Ranks:
    record: Record
    servers: list[Server]
    host: str = "127.0.0.1"
    ca: str | None = None

    def config(self, *, ports: Sequence[int] = (), **changes: Any) -> ProbeConfig:
        """A short probe; ``ports`` instead of the servers' own."""
        assert self.record.probe_token is not None
        asked = list(ports) or [server.port for server in self.servers]
        ranks = tuple(
            RankAddress(rank=rank, host=self.host, port=port, prefix=probe_prefix(rank))
            for rank, port in enumerate(asked)
        )
        config = ProbeConfig(
            ranks=ranks,
            value_bytes=SIZE,
            max_bytes=64 << 20,
            seconds=5.0,
            username=PROBE_USER,
            password=self.record.probe_token,
            ca=self.ca,
        )
        return replace(config, **changes)

    def operator(self, rank: int) -> Any:
        """A client that nobody else is counted with."""
        return valkey.Valkey(
            port=self.servers[rank].port, username="operator", password=self.record.operator_token
        )

    def keys(self, rank: int) -> list[bytes]:
        with self.operator(rank) as client:
            return sorted(client.scan(0, count=10_000)[1])

    def info(self, rank: int, section: str) -> dict[str, Any]:
        with self.operator(rank) as client:
            found: dict[str, Any] = client.info(section)
            return found


NewRanks = Callable[..., Ranks]


def new_record_with_probe() -> Record:
    return new_record(
        KVCacheTierSpec.model_validate(spec()),
        operator_token=new_token(),
        engine_token=new_token(),
        probe_token=new_token(),
    )


def new_ranks(stack: ExitStack, home: Path) -> NewRanks:
    numbers = count()

    def make(ranks: int, *, version: str = "9.1", **settings: str) -> Ranks:
        record = new_record_with_probe()
        servers = []
        for rank in range(ranks):
            directory = home / f"server-{next(numbers)}"
            directory.mkdir()
            servers.append(
                stack.enter_context(
                    running_server(
                        version,
                        directory=directory,
                        acl=acl_file(record, rank=rank),
                        settings=SETTINGS | settings,
                    )
                )
            )
        return Ranks(record=record, servers=servers)

    return make
