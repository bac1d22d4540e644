"""A tier of two ranks without a cluster, and workers whose LMCache has its published files."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, socket
from time import monotonic, sleep
from typing import Any

import yaml
from adapter_driver import Refused
from faulty_rank import Rank, record_of

from certificates import Ca
from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.record import Record
from kvtier.redact import redact
from kvtier.render.engine import engine_binaries, engine_files
from kvtier.render.mount import Mount

PROGRAM = Path(__file__).with_name("in_process_program.py")
HASH_SEED = "0"
IMPORT_SECONDS = 600.0
WORLD = 2
LAYERS, CHUNK = 2, 256
CHUNKS = 64
"""Of 16k tokens."""
NAME = "org/model"
LAYOUTS: Mapping[str, Any] = {
    "gqa": {"gqa": {"layers": LAYERS, "kvHeads": 2, "headDim": 16}},
    "mla": {"mla": {"layers": LAYERS, "kvLoraRank": 48, "qkRopeHeadDim": 16}},
}
SHAPES = {"gqa": (LAYERS, 2, CHUNK, 1, 16), "mla": (LAYERS, 1, CHUNK, 1, 64)}
"""Of a worker's part of a chunk: layers, K and V, tokens, heads, head size."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of combinations."""

    striping: str
    layout: str = "gqa"
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.striping} {self.layout}{', TLS' if self.tls else ''}"


@dataclass(frozen=True, slots=True)
class Tier:
    row: Row
    tier: KVCacheTier
    record: Record
    ranks: Sequence[Rank]
    ca: Ca | None
    home: Path
    program: Path

    def publish(self, name: str, *, swapped: bool = False, **extra: Any) -> Path:
        """The Secret's files in a new directory, as an engine mounts it.

        ``swapped``: the ranks have each other's addresses. ``extra`` is what a person adds to
        LMCache's ``extra_config``.
        """
        home = self.home / name
        home.mkdir()
        # The certificate is for this name.
        host = "localhost" if self.row.tls else "127.0.0.1"
        ranks = self.ranks[::-1] if swapped else self.ranks
        mount = Mount(str(home), tuple((host, rank.port) for rank in ranks))
        pem = self.ca.pem if self.ca else None
        files = engine_files(self.tier, self.record, ca=pem, mount=mount)
        if extra:
            config = yaml.safe_load(files["lmcache.yaml"])
            config["extra_config"] |= extra
            files["lmcache.yaml"] = yaml.safe_dump(config)
        for key, text in files.items():
            (home / key).write_text(text)
        for key, content in engine_binaries(self.tier.spec).items():
            (home / key).write_bytes(content)
        return home

    @contextmanager
    def workers(self, *which: tuple[int, Path]) -> Iterator[list["Worker"]]:
        """Processes of their own, each of a worker's number and a Secret's directory."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    Worker(
                        self.program,
                        said=secret / f"said-{number}",
                        environment=environment(secret),
                        worker=number,
                        world=WORLD,
                        model=NAME,
                        shape=SHAPES[self.row.layout],
                        mla=self.row.layout == "mla",
                    )
                )
                for number, secret in which
            ]


def environment(secret: Path) -> dict[str, str]:
    """What the Secret's ``env`` sets in a container, by a shell."""
    script = f"set -a; . {secret}/env; env -0"
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", script], env=clean, check=True, capture_output=True)
    pairs = dict(each.split("=", 1) for each in done.stdout.decode().rstrip("\0").split("\0"))
    # The program's own interpreter has begun with it: none can change it later.
    assert pairs["PYTHONHASHSEED"] == HASH_SEED
    return {key: pairs[key] for key in ("LMCACHE_CONFIG_FILE", "PYTHONPATH")}


@contextmanager
def program(python: str, *, home: Path) -> Iterator[Path]:
    """The socket where workers are to be had, once LMCache and vLLM are imported."""
    listening = home / "workers"
    with (home / "program.log").open("wb") as log:
        process = subprocess.Popen(
            [python, str(PROGRAM), str(listening)],
            env={key: value for key, value in os.environ.items() if "PYTHON" not in key}
            | {"PYTHONHASHSEED": HASH_SEED, "OMP_NUM_THREADS": "1", "LMCACHE_TRACK_USAGE": "false"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        begun = monotonic()
        while not listening.exists():
            assert process.poll() is None, (home / "program.log").read_text()[-4000:]
            assert monotonic() < begun + IMPORT_SECONDS
            sleep(0.1)
        yield listening
    finally:
        process.kill()
        process.wait()


class Worker:
    """LMCache in one worker of an engine. Each prompt has CHUNKS chunks unless told otherwise."""

    def __init__(self, program: Path, *, said: Path, **what: Any) -> None:
        self._said = said
        self._socket = socket(AF_UNIX)
        self._socket.connect(str(program))
        self._lines = self._socket.makefile("rw")
        self.opened = self.ask("open", said=str(said), **what)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Raises Refused."""
        self._lines.write(json.dumps({"do": do, **what}) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            raise Refused(self.said()[-4000:])
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(redact(answer["error"]))
        return answer

    def store(self, prompt: int, *, chunks: int = CHUNKS, there: bool = True) -> dict[str, Any]:
        return self.ask("store", prompt=prompt, chunks=chunks, there=there)

    def lookup(self, prompt: int, *, chunks: int = CHUNKS) -> tuple[float, int]:
        """Seconds, and the leading chunks that are found."""
        return _pair(self.ask("lookup", prompt=prompt, chunks=chunks))

    def retrieve(
        self, prompt: int, *, chunks: int = CHUNKS, pinned: str | None = None
    ) -> dict[str, Any]:
        """``seconds``, ``chunks`` and how many of these have the ``right`` bytes."""
        return self.ask("retrieve", prompt=prompt, chunks=chunks, pinned=pinned)

    def get(self, prompt: int) -> tuple[float, int]:
        """From the tier without a lookup before: seconds, and chunks of all."""
        return _pair(self.ask("get", prompt=prompt, chunks=CHUNKS))

    def found(self, prompt: int, *, chunks: int = CHUNKS) -> tuple[float, int]:
        """As lookup, but in the tier alone."""
        return _pair(self.ask("found", prompt=prompt, chunks=chunks))

    def pin(self, prompt: int, *, name: str, chunks: int = CHUNKS) -> int:
        found: int = self.ask("pin", prompt=prompt, chunks=chunks, name=name)["chunks"]
        return found

    def forget(self) -> None:
        """What this worker keeps itself."""
        self.ask("forget")

    def hashes(self, prompt: int) -> list[int]:
        hashes: list[int] = self.ask("keys", prompt=prompt, chunks=CHUNKS)["hashes"]
        return hashes

    def keys(self, prompt: int) -> list[str]:
        """LMCache's own names of the chunks, without a rank's prefix."""
        keys: list[str] = self.ask("keys", prompt=prompt, chunks=CHUNKS)["keys"]
        return keys

    def healthy(self) -> bool:
        healthy: bool = self.ask("health")["healthy"]
        return healthy

    def said(self) -> str:
        return redact(self._said.read_text())


def _pair(answer: Mapping[str, Any]) -> tuple[float, int]:
    return answer["seconds"], answer["chunks"]


@contextmanager
def running(row: Row, *, home: Path, program: Path) -> Iterator[Tier]:
    tier = _tier(row)
    record, ca = record_of(tier), Ca() if row.tls else None
    with ExitStack() as stack:
        ranks = []
        for number in range(WORLD):
            place = home / f"r{number}"
            place.mkdir()
            ranks.append(stack.enter_context(Rank(tier, record, rank=number, home=place, ca=ca)))
        yield Tier(row, tier, record, ranks, ca, home, program)


def _tier(row: Row) -> KVCacheTier:
    """Its link is so slow that a request may take most of a second: tests share CPUs."""
    store: dict[str, Any] = {"memoryPerRank": "1Gi"}
    return parse_tier(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "chat", "namespace": "models"},
            "spec": {
                "model": {
                    "name": NAME,
                    "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
                    "kvCacheDtype": "bfloat16",
                    "layout": LAYOUTS[row.layout],
                },
                "pool": {
                    "ranks": WORLD,
                    "striping": row.striping,
                    "prefillRate": [{"tokensPerSecond": 500}],
                    "hitLatency": "300ms",
                    "hitEngineTime": "30ms",
                    "maxEngines": 1,
                    "engine": {"connector": "LMCacheInProcess", "l1Size": "256Mi"},
                },
                "store": store | ({"tls": {"secretName": "ranks"}} if row.tls else {}),
                "placement": {
                    "links": [{"domain": "zone", "bitsPerSecond": "20M", "roundTrip": "50us"}]
                },
            },
        }
    )
