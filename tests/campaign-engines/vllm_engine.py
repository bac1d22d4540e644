"""A real vLLM and LMCache's servers, as containers of one engine's pod: from the files of the
published Secret, mounted at /kvtier, and nothing else of kvtier.

Each container is a process with namespaces of its own for mounts and processes, in the network of
a node of the cluster and with the cluster's DNS; all of an engine share /dev/shm, as pods do that
mount a volume there. It ends with all that it started when its ``unshare`` is killed, and when the
tests are.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from lmcache_environment import PROGRAM

from kvtier.redact import redact
from livecluster.cluster import LiveCluster
from livecluster.shaping import Links
from livecluster.waiting import eventually

NODE = "node-3"
MOUNT = Path("/kvtier")
HTTP_PORT = 8000
LMCACHE_HTTP_PORT = 8880
START_SECONDS = 300.0
"""vLLM and LMCache import torch: half a minute each on an idle machine."""
ANSWER_SECONDS = 300.0
"""The first forward of two workers on shared cores has taken a minute."""
LONGEST = 16384
"""Tokens of a prompt and its answer."""
STARTED = "Application startup complete"
MODEL = "random-llama"
VLLM = "vllm.entrypoints.openai.api_server"
"""What ``vllm serve`` runs; that itself asks for the version of a package of another name."""
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
CONTAINER = """set -e
mount --bind "$1" /kvtier
mount -o remount,bind,ro /kvtier
mount --bind "$2" /dev/shm
mount --bind "$3" /etc/resolv.conf
mount --bind "$4" "$5"
shift 5
exec "$@"
"""
ENVIRONMENT = {
    # Nobody is told of these runs, and nothing is asked for.
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Threads that spin while they wait would take the other worker's core.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The server moves KV, as it does for GPUs; for CPUs LMCache's default is the other way.
    "LMCACHE_MP_TRANSFER_MODE": "lmcache_driven",
}


@dataclass(frozen=True, slots=True)
class Container:
    """One running program of the engine, and what it has said so far."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        return redact(self.log.read_text(errors="replace"))

    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """With all that it started: they are in its namespace of processes."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Node:
    """Where engines run. ``python`` is the environment's that has vLLM and LMCache."""

    python: str
    inside: tuple[str, ...]
    address: str
    dns: str
    home: Path

    @classmethod
    def of(cls, cluster: LiveCluster, *, python: str, home: Path) -> "Node":
        (node,) = (each for each in cluster.facts["nodes"] if each["name"] == NODE)
        return cls(
            python=python,
            inside=Links(cluster).inside(NODE),
            address=node["address"],
            dns=cluster.facts["dns"],
            home=home,
        )

    @property
    def kept(self) -> str:
        """The home of engines, beside their environment."""
        return str(Path(self.python).parents[1] / "home")

    def fetch(self, url: str) -> str:
        """What answers there, also on the node's loopback."""
        done = subprocess.run(
            [*self.inside, sys.executable, "-c", FETCH, url],
            env={},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request: the tokens, and seconds until they were all there."""

    tokens: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Engine:
    """A vLLM that answers, and its LMCache servers by rank (none in process)."""

    node: Node
    vllm: Container
    servers: tuple[Container, ...]

    def ask(self, prompt: Sequence[int], *, tokens: int = 16, salt: str | None = None) -> Answer:
        """Greedy tokens for a prompt of token ids. With a new salt nothing that is kept is used."""
        document = {
            "model": MODEL,
            "prompt": list(prompt),
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "return_token_ids": True,
        } | ({} if salt is None else {"cache_salt": salt})
        begin = time.monotonic()
        found = json.loads(self._request("POST", "/v1/completions", document))
        seconds = time.monotonic() - begin
        (choice,) = found["choices"]
        assert len(choice["token_ids"]) == tokens, found
        return Answer(tokens=tuple(choice["token_ids"]), seconds=seconds)

    def said(self) -> str:
        """The end of what each program has said, for a failed assertion."""
        parts = (self.vllm, *self.servers)
        return "\n".join(f"{each.name}: ...{each.said()[-3000:]}" for each in parts)

    def metrics(self) -> str:
        """vLLM's own text."""
        return self._request("GET", "/metrics")

    def _request(self, method: str, path: str, document: dict[str, Any] | None = None) -> str:
        # Not by urllib, which would ask this machine's proxy.
        connection = HTTPConnection(self.node.address, HTTP_PORT, timeout=ANSWER_SECONDS)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, f"{method} {path}: {response.status} {text[:500]}"
        return text

    def hit_tokens(self) -> int:
        """Tokens that vLLM has had from its connector so far."""
        return round(total(self.metrics(), "vllm:external_prefix_cache_hits_total"))

    def tier_tokens(self) -> list[int]:
        """For each LMCache server, tokens that it has found in the tier and not in its memory."""
        return [
            round(total(self.node.fetch(url), "lmcache_mp_lookup_hit_l2_tokens_total"))
            for url in (
                f"http://127.0.0.1:{LMCACHE_HTTP_PORT + rank}/metrics"
                for rank in range(len(self.servers))
            )
        ]


def total(metrics: str, name: str) -> float:
    """The sum of all series of one name."""
    found = (line.rpartition(" ") for line in metrics.splitlines() if line.startswith(name))
    return sum(float(value) for series, _, value in found if series.partition("{")[0] == name)


@contextmanager
def running(
    node: Node, *, model: Path, name: str, files: Mapping[str, bytes] | None = None, tensor: int = 1
) -> Iterator[Engine]:
    """An engine, from the Secret's files; without them one that has no connector.

    All see their model at the same path, which is in LMCache's keys. Raises AssertionError with
    what was said if a program ends or does not answer in time.
    """
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=node.home))
        shared = Path(tempfile.mkdtemp(prefix="kvtier-engine-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, shared)
        parts = _Parts(node=node, home=home, shared=shared, model=model)
        parts.prepare(files or {"env": b""})
        keys = sorted(key for key in files or {} if key.startswith("server-args"))
        servers = [parts.start(key, _server(node, key), stack) for key in keys]
        vllm = parts.start("vllm", _vllm(node, tensor=tensor, connected=bool(files)), stack)
        _until_it_answers(vllm, servers)
        yield Engine(node=node, vllm=vllm, servers=tuple(servers))


def _server(node: Node, key: str) -> str:
    """As docs/engines.md has it."""
    adapter = f"l2-adapter{key.removeprefix('server-args')}.json"
    return (
        f"exec {node.python} -c '{PROGRAM}' server $(cat /kvtier/{key}) "
        f'--l2-adapter "$(cat /kvtier/{adapter})"'
    )


def _vllm(node: Node, *, tensor: int, connected: bool) -> str:
    text = (
        f"exec {node.python} -m {VLLM} --model {node.home}/model --served-model-name {MODEL} "
        f"--host {node.address} --port {HTTP_PORT} --tensor-parallel-size {tensor} "
        f"--distributed-executor-backend mp --skip-tokenizer-init --enforce-eager "
        f"--dtype float32 --max-model-len {LONGEST}"
    )
    if connected:
        text += ' --kv-transfer-config "$(cat /kvtier/kv-transfer-config.json)"'
    return text


@dataclass(frozen=True, slots=True)
class _Parts:
    node: Node
    home: Path
    shared: Path
    model: Path

    def prepare(self, files: Mapping[str, bytes]) -> None:
        MOUNT.mkdir(exist_ok=True)
        (self.node.home / "model").mkdir(exist_ok=True)
        (self.home / "kvtier").mkdir()
        for key, value in files.items():
            (self.home / "kvtier" / key).write_bytes(value)
        (self.home / "resolv.conf").write_text(
            f"nameserver {self.node.dns}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n"
        )

    def start(self, name: str, script: str, stack: ExitStack) -> Container:
        log = self.home / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", *self.node.inside),
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                    *("--mount-proc", "sh", "-c", CONTAINER, "sh"),
                    *(str(self.home / "kvtier"), str(self.shared), str(self.home / "resolv.conf")),
                    *(str(self.model), str(self.node.home / "model")),
                    *("sh", "-c", f"set -a; . /kvtier/env; {script}"),
                ],
                # What vLLM keeps there of a model's class saves the next one half a minute.
                env={"PATH": os.environ["PATH"], "HOME": self.node.kept} | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        container = Container(name=name, process=process, log=log)
        stack.callback(container.end)
        return container


def _until_it_answers(vllm: Container, servers: Sequence[Container]) -> None:
    def found() -> bool:
        for each in (vllm, *servers):
            assert each.runs(), f"{each.name} ended:\n{each.said()[-6000:]}"
        return STARTED in vllm.said()

    eventually(found, seconds=START_SECONDS, what="vLLM starts", detail=lambda: vllm.said()[-6000:])
