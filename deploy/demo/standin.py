"""A stand-in for a prefill engine: stores and reads KV chunks as LMCache does, without a GPU.

It knows what an engine knows: its own model and the size of a chunk (its environment), and the
published engine Secret (mounted). Every few seconds it looks up one long prompt on every rank,
compares each byte that it gets, and stores the chunks that are missing, as an engine that had to
recompute them. Wrong bytes, or a rank that hands out another rank's keys, end it with an error.

The bytes of a chunk follow from its key, so that every stand-in knows what every other must have
stored. Real KV is as random; its values do not matter here, its size does.
"""

import hashlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import valkey
from valkey.exceptions import NoPermissionError, ValkeyError

KV_RANK = 0x01000100
"""world_size << 24 | rank << 16 | local_world_size << 8 | local_rank, as LMCache writes it. With
striping Shard each engine rank has an LMCache server of its own, so that all ranks write this one:
only the prefix of the rank tells their keys apart."""
OBJECT_GROUP = 0
CONNECT_SECONDS = 1.0


class Wrong(Exception):
    """What must never happen; the text says what did."""


@dataclass(frozen=True, slots=True)
class Engine:
    """``chunk_bytes`` is what one rank stores of one chunk, ``interval`` is in seconds."""

    model: str
    chunk_bytes: int
    prompt_tokens: int
    interval: float
    port: int


@dataclass(frozen=True, slots=True)
class Round:
    """One look-up of the prompt on one rank, in chunks.

    ``hit`` counts those found before the first that was missing; ``problem`` says why the rank
    could not be used, and then nothing else counts. ``digest`` is over all bytes that were read.
    """

    hit: int = 0
    stored: int = 0
    verified: int = 0
    digest: str = ""
    problem: str = ""


class Rank:
    """One rank's Valkey, reached by nothing but the engine Secret."""

    def __init__(self, connection: dict[str, Any], rank: dict[str, Any]) -> None:
        self.number = int(rank["rank"])
        self.address = f"{rank['host']}:{rank['port']}"
        self.prefix = str(rank["prefix"])
        self._client = valkey.Valkey(
            host=rank["host"],
            port=rank["port"],
            username=connection["username"],
            password=connection["password"],
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=connection["requestTimeoutSeconds"],
        )

    def look_up(self, engine: Engine, hashes: list[str]) -> Round:
        """Read every chunk, store those that are missing, and read them back."""
        hit = stored = 0
        digest = hashlib.sha256()
        try:
            for chunk_hash in hashes:
                key = wire_key(self.prefix, engine.model, chunk_hash)
                expected = chunk_bytes(key, engine.chunk_bytes)
                found = self._client.get(key)
                if found is None:
                    self._client.set(key, expected)
                    stored += 1
                    found = self._client.get(key)
                elif not stored:
                    hit += 1
                if found != expected:
                    raise Wrong(f"rank {self.number}: other bytes than were stored under {key}")
                digest.update(found)
        except (ValkeyError, OSError) as error:
            return Round(problem=" ".join(str(error).split()))
        return Round(hit=hit, stored=stored, verified=len(hashes), digest=digest.hexdigest())

    def check_refuses(self, other: "Rank", model: str) -> None:
        """A swapped address must be an error, not another rank's heads. Raises Wrong."""
        key = wire_key(other.prefix, model, "00")
        for word, command in (
            ("read", lambda: self._client.get(key)),
            ("write", lambda: self._client.set(key, b"")),
        ):
            try:
                command()  # type: ignore[no-untyped-call]
            except NoPermissionError:
                continue
            raise Wrong(f"rank {self.number} lets its user {word} keys of rank {other.number}")


def wire_key(prefix: str, model: str, chunk_hash: str) -> str:
    """The key that LMCache 0.5 stores a chunk under."""
    return f"{prefix}@{model}@{KV_RANK:08x}@{OBJECT_GROUP:x}@{chunk_hash}"


def chunk_hashes(*, tokens: int, chunk_tokens: int) -> Iterator[str]:
    """Hashes of a prompt's full chunks. Each covers the ones before it: KV depends on them."""
    previous = b""
    for start in range(0, tokens - chunk_tokens + 1, chunk_tokens):
        text = ",".join(str(token) for token in range(start, start + chunk_tokens))
        previous = hashlib.blake2b(previous + text.encode(), digest_size=32).digest()
        yield previous.hex()


def chunk_bytes(key: str, count: int) -> bytes:
    return random.Random(key).randbytes(count)


def size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


class Standin:
    """All W ranks of one engine."""

    def __init__(self, engine: Engine, connection: dict[str, Any]) -> None:
        self._engine = engine
        self._chunk_tokens = int(connection["chunkTokens"])
        self._ranks = [Rank(connection, rank) for rank in connection["ranks"]]
        self._hashes = list(
            chunk_hashes(tokens=engine.prompt_tokens, chunk_tokens=self._chunk_tokens)
        )
        self.verified = False

    def run(self) -> None:
        """Never returns. Raises Wrong."""
        for rank in self._ranks:
            self._verify(rank)
        self.verified = True
        number = 0
        while True:
            number += 1
            self._look_up(number)
            time.sleep(self._engine.interval)

    def _verify(self, rank: Rank) -> None:
        """Wait until a rank answers, then check everything about it."""
        said = ""
        while (done := rank.look_up(self._engine, self._hashes)).problem:
            if done.problem != said:
                said = done.problem
                print(f"waiting for rank {rank.number} at {rank.address}: {said}")
            time.sleep(1)
        for other in self._ranks:
            if other is not rank:
                rank.check_refuses(other, self._engine.model)
        print(
            f"rank {rank.number} at {rank.address}: {done.verified} chunks of "
            f"{size(self._engine.chunk_bytes)} ({done.stored} stored, "
            f"{done.verified - done.stored} found), every byte right, sha256 {done.digest[:12]}; "
            "other ranks' keys refused"
        )

    def _look_up(self, number: int) -> None:
        rounds = [(rank, rank.look_up(self._engine, self._hashes)) for rank in self._ranks]
        # An engine can use a chunk only if it has all ranks' parts of it and of those before.
        hit = min(done.hit for _, done in rounds) * self._chunk_tokens
        total = len(self._hashes) * self._chunk_tokens
        read = sum(done.verified for _, done in rounds) * self._engine.chunk_bytes
        line = f"look-up {number}: hit {hit} of {total} tokens"
        if read:
            line += f"; {size(read)} read, every byte right"
        for rank, done in rounds:
            if done.stored:
                line += f"; rank {rank.number} lacked {done.stored} chunks, stored again"
        lost = [(rank.number, done.problem) for rank, done in rounds if done.problem]
        if lost:
            numbers = ", ".join(str(number) for number, _ in lost)
            line += f"; no answer from rank {numbers} ({lost[0][1]})"
        print(line)


def serve_health(standin: Standin, port: int) -> None:
    """``/health`` for the readiness probe: ready once every rank has been verified."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = standin.verified and self.path == "/health"
            self.send_response(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> int:
    engine = Engine(
        model=os.environ["MODEL"],
        chunk_bytes=int(os.environ["CHUNK_BYTES"]),
        prompt_tokens=int(os.environ["PROMPT_TOKENS"]),
        interval=float(os.environ["INTERVAL_SECONDS"]),
        port=int(os.environ["PORT"]),
    )
    secret = Path(os.environ["ENGINE_SECRET"])
    standin = Standin(engine, json.loads((secret / "connection.json").read_text()))
    serve_health(standin, engine.port)
    try:
        standin.run()
    except Wrong as error:
        print(f"WRONG: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
