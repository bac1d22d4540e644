"""A real vLLM and LMCache's servers, as containers of one engine's pod (``engine_pod``)."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from engine_pod import Container, Node, pod
from lmcache_environment import PROGRAM

from livecluster.waiting import eventually

HTTP_PORT = 8000
LMCACHE_HTTP_PORT = 8880
START_SECONDS = 900.0
"""vLLM's processes import torch one after another: a minute in all on an idle machine."""
ANSWER_SECONDS = 300.0
"""The first forward of two workers on shared cores has taken a minute."""
LONGEST = 16384
"""Tokens of a prompt and its answer."""
STARTED = "Application startup complete"
MODEL = "random-llama"
VLLM = "vllm.entrypoints.openai.api_server"
"""What ``vllm serve`` runs; that itself asks for the version of a package of another name."""


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
    (node.home / "model").mkdir(exist_ok=True)
    mounts = {f"{node.home}/model": model}
    with (
        pod(node, name=name, files=files or {"env": b""}, mounts=mounts) as containers,
        ExitStack() as stack,
    ):
        keys = sorted(key for key in files or {} if key.startswith("server-args"))
        servers = [
            stack.enter_context(containers.running(key, server_command(node, key))) for key in keys
        ]
        command = _vllm(node, tensor=tensor, connected=bool(files))
        vllm = stack.enter_context(containers.running("vllm", command))
        _until_it_answers(vllm, servers)
        yield Engine(node=node, vllm=vllm, servers=tuple(servers))


def server_command(node: Node, key: str) -> str:
    """LMCache's server by one ``server-args`` of the Secret, as docs/engines.md has it."""
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


def _until_it_answers(vllm: Container, servers: Sequence[Container]) -> None:
    def found() -> bool:
        for each in (vllm, *servers):
            assert each.runs(), f"{each.name} ended:\n{each.said()[-6000:]}"
        return STARTED in vllm.said()

    eventually(found, seconds=START_SECONDS, what="vLLM starts", detail=lambda: vllm.said()[-6000:])
