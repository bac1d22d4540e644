#!/usr/bin/python3
"""What stands in for vLLM in a fleet: it runs in kvtier's image under vLLM's name and arguments.

Request by request it looks chunks up on all ranks, fetches and checks what is there and stores what
is missing, from nothing but the mounted engine Secret. Each value is stamped with the weights that
its writer *really* runs, whatever the Secret says: the arguments, and ``FLEET_WEIGHTS``, which
stands for weights that changed under one name and which nobody can see from outside. Like a real
engine it cannot tell a wrong value from a right one, and leaves it where it is; but it counts it.

It tells a line of JSON each second (``Told``) and serves /health.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fleet_link import PATIENCE_SECONDS, Answer, Link, No
from fleet_told import Told, now

from kvtier.loadtest import striping
from kvtier.loadtest.connection import Connection, load
from kvtier.loadtest.keys import chunk_hashes
from kvtier.loadtest.objects import Held, flat, objects
from kvtier.loadtest.workload import Workload, prompt
from kvtier.store.resp import command
from kvtier.store.values import Checker, Identity, Verdict, header, identity, payload

SECRET_DIR = Path("/kvtier")
PORT = 8000
CHUNKS = 32
"""Of one prompt: so many are asked for at once."""
LASTING, RECENT = 8, 8
"""Beginnings that are always asked for, and how many of those that come and go are at a time."""
FRESH_SECONDS = 2.0
"""So often there is a new beginning, which whoever comes first stores for all."""
TELL_SECONDS = 1.0
START_SECONDS = 5.0
"""For all links together: with a rank that is away an engine begins without it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine really runs."""

    model: str
    revision: str
    dtype: str
    seed: str

    @classmethod
    def effective(cls, arguments: Sequence[str]) -> "Weights":
        """From vLLM's arguments; those that say nothing of the weights are vLLM's own business."""
        parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
        serve = parser.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
        serve.add_argument("model")
        serve.add_argument("--revision", default="main")
        serve.add_argument("--kv-cache-dtype", default="auto")
        found, _ = parser.parse_known_args(arguments)
        return cls(
            model=found.model,
            revision=found.revision,
            dtype=found.kv_cache_dtype,
            seed=os.environ.get("FLEET_WEIGHTS", ""),
        )

    @property
    def stamp(self) -> str:
        """As many characters as a value's header has for its generation."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.model}@{self.revision} {self.dtype} {self.seed}".strip()


@dataclass(frozen=True, slots=True)
class Prompt:
    """By rank what it keeps of a prompt; ``identities`` are for whom the values must be."""

    held: tuple[Held, ...]
    identities: dict[bytes, Identity]


class Engine:
    """One pod's work, one request after another."""

    def __init__(self, weights: Weights, *, secret: Path, rate: float) -> None:
        self._weights = weights
        self._secret = secret
        self._rate = rate
        self._pod = socket.gethostname()
        self._chance = random.Random(self._pod)
        self._links: list[Link] = []
        self._told: Told | None = None
        self._told_at = 0.0
        self._version = self._mounted()
        self._connection = self._load()
        self.stop = threading.Event()
        self.ready = threading.Event()

    def run(self) -> None:
        """Until ``stop``."""
        due = time.monotonic()
        while not self.stop.is_set():
            told = self._follow_secret()
            wrong = told.counts.wrong
            self._request(told)
            self.ready.set()
            first_wrong = told.counts.wrong and not wrong
            if first_wrong or time.monotonic() - self._told_at >= TELL_SECONDS:
                self._tell(final=False)
            # Who is behind does not catch up: the load stays what was asked for.
            due = max(due + 1 / self._rate, time.monotonic())
            if not self.stop.wait(due - time.monotonic()):
                told.counts.late = max(told.counts.late, round(time.monotonic() - due, 6))
        self._tell(final=True)

    def _follow_secret(self) -> Told:
        """The current stretch; another one begins when the kubelet has changed the Secret."""
        version = self._mounted()
        if self._told and version == self._version:
            return self._told
        self._version, connection = version, self._load()
        if self._told and connection == self._connection:
            return self._told
        self._tell(final=True)
        for link in self._links:
            link.close()
        self._connection = connection
        self._prompt = lru_cache(2 * (LASTING + RECENT))(self._make_prompt)
        self._links = [Link(connection, address) for address in connection.ranks]
        for link in self._links:
            link.wait_tried()
        if self._told is None:
            # Each node lets a new pod in when it has heard of it, one a second after another. A
            # real engine loads its weights meanwhile.
            last = time.monotonic() + START_SECONDS
            for link in self._links:
                link.wait_opened(max(last - time.monotonic(), 0.0))
        self._told = Told(
            pod=self._pod,
            stretch=self._told.stretch + 1 if self._told else 0,
            weights=self._weights.stamp,
            runs=str(self._weights),
            generation=connection.generation,
            began=now(),
        )
        return self._told

    def _mounted(self) -> str:
        """Another one each time the kubelet has changed the Secret's files."""
        return str((self._secret / "..data").readlink())

    def _load(self) -> Connection:
        # The connector's keys have the name of the model that really runs.
        return replace(load(self._secret), model=self._weights.model)

    def _request(self, told: Told) -> None:
        counts = told.counts
        made = self._prompt(self._beginning())
        keys = [flat(held) for held in made.held]
        counts.requests += 1
        looked = self._ask(told, [[command(b"EXISTS", key) for key in mine] for mine in keys])
        there: list[set[bytes]] = []
        store: list[list[bytes]] = []
        for mine, answers in zip(keys, looked, strict=True):
            pairs = list(zip(mine, answers, strict=True))
            there.append({key for key, answer in pairs if answer == b"1"})
            store.append([key for key, answer in pairs if answer in (b"0", No.DENIED)])
            counts.lookups += len(pairs)
            self._missed(told, [answer for answer in answers if answer != b"1"])
        self._fetch(told, made, there)
        self._store(told, made, store)

    def _fetch(self, told: Told, made: Prompt, there: Sequence[set[bytes]]) -> None:
        """Read and judge the chunks up to the first that any rank lacks."""
        answers = [
            striping.answer(
                list(held), [mine.issuperset(keys) for keys in held.values()], chunks=CHUNKS
            )
            for held, mine in zip(made.held, there, strict=True)
        ]
        hit = striping.hit_chunks(answers)
        wanted = [
            [key for index, keys in held.items() if index < hit for key in keys]
            for held in made.held
        ]
        read = self._ask(told, [[command(b"GET", key) for key in mine] for mine in wanted])
        size = self._connection.object_bytes
        verdicts = []
        for mine, values in zip(wanted, read, strict=True):
            self._missed(told, [value for value in values if not isinstance(value, bytes)])
            for key, value in zip(mine, values, strict=True):
                if isinstance(value, bytes):
                    checker = Checker(made.identities[key], size=size)
                    checker.feed(memoryview(value))
                    verdicts.append(checker.verdict())
        self._judged(told, Counter(verdicts))

    def _store(self, told: Told, made: Prompt, store: Sequence[Sequence[bytes]]) -> None:
        size = self._connection.object_bytes
        values = [
            [command(b"SET", key, self._value(made.identities[key], size)) for key in mine]
            for mine in store
        ]
        for answer in (each for answers in self._ask(told, values) for each in answers):
            told.counts.writes += answer == b"OK"
            told.counts.refused += answer is No.DENIED
            told.counts.errors += answer is No.ERROR
            if answer == b"OK":
                told.note("write")
            elif answer is No.DENIED:
                told.note("refused")

    def _ask(self, told: Told, batches: Sequence[Sequence[bytes]]) -> list[list[Answer]]:
        """Each rank's answers to its commands; all ranks work at the same time."""
        began = time.monotonic()
        deadline = began + PATIENCE_SECONDS
        sent = [
            link.send(batch) if batch else False
            for link, batch in zip(self._links, batches, strict=True)
        ]
        answers: list[list[Answer]] = []
        for link, batch, was_sent in zip(self._links, batches, sent, strict=True):
            found = link.answers(len(batch), deadline=deadline) if was_sent else None
            if was_sent:
                told.counts.timed(time.monotonic() - began)
            told.counts.errors += bool(batch) and found is None
            answers.append([No.LOST] * len(batch) if found is None else found)
        return answers

    @staticmethod
    def _missed(told: Told, answers: Sequence[Answer]) -> None:
        denied = sum(answer is No.DENIED for answer in answers)
        told.counts.misses += len(answers)
        told.counts.denied += denied
        told.counts.errors += sum(answer is No.ERROR for answer in answers)
        if denied:
            told.note("denied")

    @staticmethod
    def _judged(told: Told, verdicts: Counter[Verdict]) -> None:
        counts, right = told.counts, verdicts[Verdict.RIGHT]
        counts.reads += verdicts.total()
        counts.hits += right
        counts.stale += verdicts[Verdict.STALE]
        counts.foreign += verdicts[Verdict.FOREIGN]
        counts.corrupt += verdicts[Verdict.CORRUPT]
        if right:
            told.note("hit")
        if verdicts.total() > right:
            told.note("wrong")

    def _beginning(self) -> int:
        """Half of all requests are of a lasting beginning, half of one of the last seconds."""
        if self._chance.random() < 0.5:
            return self._chance.randrange(LASTING)
        return LASTING + int(time.time() / FRESH_SECONDS) - self._chance.randrange(RECENT)

    def _make_prompt(self, beginning: int) -> Prompt:
        connection = self._connection
        tokens = CHUNKS * connection.chunk_tokens
        workload = Workload(
            rate=self._rate, prompt_tokens=tokens, prefixes=1, prefix_tokens=tokens, seed=0
        )
        text = prompt(workload, prefix=beginning, unique="")
        held = objects(connection, chunk_hashes(text, chunk_tokens=connection.chunk_tokens))
        return Prompt(
            held=tuple(held),
            identities={
                key: identity(
                    tier=f"{connection.namespace}/{connection.tier}",
                    # In the place of the generation: a value is stale if other weights wrote it.
                    generation=self._weights.stamp,
                    rank=address.rank,
                    key=key,
                )
                for address, mine in zip(connection.ranks, held, strict=True)
                for key in flat(mine)
            },
        )

    def _value(self, owner: Identity, size: int) -> bytes:
        head = header(owner, writer=self._pod, size=size)
        return b"".join([head, *payload(owner, size - len(head))])

    def _tell(self, *, final: bool) -> None:
        if self._told:
            self._told_at = time.monotonic()
            self._told.at, self._told.final = now(), final
            print(json.dumps(asdict(self._told)), flush=True)


def _serve_health(engine: Engine) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = self.path == "/health" and engine.ready.is_set()
            self.send_response(200 if good else 503)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """The log is for lines of JSON."""

    server = ThreadingHTTPServer(("", PORT), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    weights = Weights.effective(sys.argv[1:])
    engine = Engine(weights, secret=SECRET_DIR, rate=float(os.environ.get("FLEET_RATE", "10")))
    signal.signal(signal.SIGTERM, lambda *_: engine.stop.set())
    _serve_health(engine)
    engine.run()


if __name__ == "__main__":
    main()
