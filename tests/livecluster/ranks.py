"""A client of a tier that knows what an engine knows: the published Secret, nothing else."""

import hashlib
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import valkey

KV_RANK = 0x01000100
"""LMCache's world_size << 24 | rank << 16 | local_world_size << 8 | local_rank; with one server per
rank all ranks write this one."""
SECONDS = 5.0

Resolve = Callable[[str], str]


class Engine:
    """Stores and reads chunks under LMCache's wire keys."""

    def __init__(
        self, connection: dict[str, Any], *, model: str, chunk_bytes: int, resolve: Resolve
    ) -> None:
        self.connection = connection
        self.token: str = connection["password"]
        self._model = model
        self._chunk_bytes = chunk_bytes
        self.resolve = resolve

    @property
    def ranks(self) -> list[int]:
        return [rank["rank"] for rank in self.connection["ranks"]]

    def prefix(self, rank: int) -> str:
        return str(self.connection["ranks"][rank]["prefix"])

    def key(self, rank: int, chunk: int) -> str:
        chunk_hash = hashlib.sha256(str(chunk).encode()).hexdigest()
        return f"{self.prefix(rank)}@{self._model}@{KV_RANK:08x}@0@{chunk_hash}"

    @contextmanager
    def session(self, rank: int) -> Iterator[valkey.Valkey]:
        """A connection to one rank as the engine's user."""
        with self.connect(rank, username=self.token, password=self.token) as client:
            yield client

    @contextmanager
    def connect(
        self, rank: int, *, username: str | None, password: str | None
    ) -> Iterator[valkey.Valkey]:
        entry = self.connection["ranks"][rank]
        client = valkey.Valkey(
            host=self.resolve(entry["host"]),
            port=entry["port"],
            username=username,
            password=password,
            socket_connect_timeout=SECONDS,
            socket_timeout=SECONDS,
        )
        try:
            yield client
        finally:
            client.close()

    def address(self, rank: int) -> tuple[str, int]:
        """Where the rank's Service answers."""
        entry = self.connection["ranks"][rank]
        return self.resolve(entry["host"]), entry["port"]

    def reaches_every_rank(self) -> bool:
        """Whether a connection to every rank's Service opens now; not whether anything works."""
        for entry in self.connection["ranks"]:
            try:
                socket.create_connection(self.address(entry["rank"]), timeout=SECONDS).close()
            except OSError:
                return False
        return True

    def store(self, *, chunks: int) -> None:
        """Store so many chunks on every rank."""
        for rank in self.ranks:
            with self.session(rank) as client:
                for chunk in range(chunks):
                    key = self.key(rank, chunk)
                    assert client.set(key, self._bytes(key))

    def hits(self, *, chunks: int) -> dict[int, int]:
        """By rank, how many of the chunks are there. Every byte that is there must be right."""
        return {rank: self._hits(rank, chunks) for rank in self.ranks}

    def _hits(self, rank: int, chunks: int) -> int:
        found = 0
        with self.session(rank) as client:
            for chunk in range(chunks):
                key = self.key(rank, chunk)
                value = client.get(key)
                if value is not None:
                    assert value == self._bytes(key), f"other bytes than were stored under {key}"
                    found += 1
        return found

    def _bytes(self, key: str) -> bytes:
        return random.Random(key).randbytes(self._chunk_bytes)


def dns_resolver(server: str) -> Resolve:
    """Names as a pod resolves them, asked of the cluster's own DNS server."""

    def resolve(host: str) -> str:
        query = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0)
        for label in f"{host}.cluster.local".split("."):
            query += bytes([len(label)]) + label.encode()
        query += b"\0" + struct.pack(">HH", 1, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(SECONDS)
            link.sendto(query, (server, 53))
            reply = link.recv(512)
        flags, _, answers = struct.unpack(">HHH", reply[2:8])
        assert flags & 0xF == 0, f"{host}: the cluster's DNS answers code {flags & 0xF}"
        assert answers == 1, f"{host} has {answers} addresses"
        # One record of type A ends with its address.
        return socket.inet_ntoa(reply[-4:])

    return resolve
