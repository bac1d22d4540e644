"""Ranks that accept connections and never answer."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def silent_ranks(directory: Path, *, ranks: int, request_timeout: float) -> Iterator[Path]:
    """Write a Secret of such a tier there. The kernel accepts; nobody ever reads."""
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
            for _ in range(ranks)
        ]
        document = {
            "tier": "silent",
            "namespace": "models",
            "generation": "0123456789ab",
            "striping": "Shard",
            "model": "example/small",
            "kvRanks": ["01000100"],
            "chunkTokens": 256,
            "chunkBytesPerRank": 4096,
            "prefillRate": [{"tokens": 0, "tokensPerSecond": 50000}],
            "username": "kvtt-ab",
            "password": "kvtt-ab",
            "workers": 2,
            "requestTimeoutSeconds": request_timeout,
            "ranks": [
                {
                    "rank": number,
                    "host": "127.0.0.1",
                    "port": listener.getsockname()[1],
                    "prefix": f"kvt-0123456789ab-r{number}",
                }
                for number, listener in enumerate(listeners)
            ],
        }
        (directory / "connection.json").write_text(json.dumps(document))
        yield directory
