"""LMCache's L2 adapter in a process of the engines' environment, asked for what its server asks."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvtier.redact import redact

PROGRAM = Path(__file__).with_name("adapter_program.py")
ONE_RANK = 0x01000100
"""The rank part of every key where each rank has a server of its own."""


class Refused(AssertionError):
    """What LMCache raised, or the end of what its process said when it went away."""


class Driver:
    """``chunks`` are numbered from ``first``; each is an object for every one of ``kv_ranks``."""

    def __init__(self, process: "subprocess.Popen[str]", said: Path) -> None:
        self._process = process
        self._said = said

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Raises Refused."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Refused(self.said()[-4000:])
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(redact(answer["error"]))
        return answer

    def open(self, adapter: Mapping[str, Any]) -> float:
        """Seconds until it is there. What was open before is left as it is."""
        seconds: float = self.ask("open", adapter=dict(adapter))["seconds"]
        return seconds

    def store(self, chunks: int, **what: Any) -> bool:
        stored: bool = self.ask("store", **_request(chunks, **what))["stored"]
        return stored

    def load(self, chunks: int, **what: Any) -> dict[str, Any]:
        """``seconds``, ``hits`` and how many of these have the ``right`` bytes."""
        return self.ask("load", **_request(chunks, **what))

    def lookup(self, chunks: int, **what: Any) -> tuple[float, int]:
        """Seconds, and objects found."""
        ((seconds, hits),) = self.lookups([_request(chunks, **what)])
        return seconds, hits

    def lookups(self, requests: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
        """Of requests that are submitted together, in their order."""
        full = [{"kv_ranks": [ONE_RANK], **each} for each in requests]
        answer = self.ask("lookup", requests=full)
        return list(zip(answer["seconds"], answer["hits"], strict=True))

    def said(self) -> str:
        return redact(self._said.read_text())


@contextmanager
def driver(
    program: Sequence[str], *, home: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Driver]:
    """``program`` is LMCache's command, of which only the interpreter counts here."""
    command = [program[0], str(PROGRAM)]
    with driven(command, home=home, environment=os.environ | dict(environment or {})) as found:
        yield found


@contextmanager
def driven(
    command: Sequence[str], *, home: Path, environment: Mapping[str, str]
) -> Iterator[Driver]:
    """``command`` runs PROGRAM, and ``environment`` is all that it gets."""
    said = home / "adapter.log"
    with said.open("a") as log:
        process = subprocess.Popen(
            list(command),
            env={"OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield Driver(process, said)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _request(chunks: int, **what: Any) -> dict[str, Any]:
    return {"chunks": chunks, "kv_ranks": [ONE_RANK], **what}
