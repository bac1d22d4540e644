"""A tier of real servers on this machine."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import valkey
from valkey_servers import Server

from kvtier.generation.record import Record


@dataclass
class LocalTier:
    """Its ranks' servers and the directory where an engine finds the Secret."""

    servers: list[Server]
    record: Record
    secret: Path

    @property
    def token(self) -> str:
        return self.record.current.token

    @property
    def request_timeout(self) -> float:
        return float(self.connection()["requestTimeoutSeconds"])

    def connection(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.secret / "connection.json").read_text())
        return document

    def change(self, **fields: Any) -> None:
        """Write other values into the Secret."""
        text = json.dumps({**self.connection(), **fields})
        (self.secret / "connection.json").write_text(text)

    def operator(self, rank: int) -> Any:
        return valkey.Valkey(
            port=self.servers[rank].port, username="operator", password=self.record.operator_token
        )

    def engine(self, rank: int) -> Any:
        port = self.servers[rank].port
        return valkey.Valkey(port=port, username=self.token, password=self.token)

    def keys(self, rank: int) -> list[bytes]:
        found: list[bytes] = []
        cursor = 0
        with self.operator(rank) as client:
            while True:
                cursor, some = client.scan(cursor, count=1000)
                found += some
                if not cursor:
                    return sorted(found)


NewLocalTier = Callable[..., LocalTier]
