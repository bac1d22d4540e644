"""The limiter's HTTP: what gateways ask before each request, and all the rest.

No router: aiohttp's costs more than the decision does. Headers are never logged, since gateways
forward the users' Authorization with every question.
"""

import json
import logging
import random
from collections.abc import Callable
from typing import Final

from aiohttp import web
from multidict import istr
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kvtier.limiter.answer import LONGEST_SECONDS, refusal, retry_after, state_of
from kvtier.limiter.gates import Gates
from kvtier.limiter.peers import Peers
from kvtier.limiter.report import BadReport, from_json
from kvtier.limiter.tokens_of_request import number_of, tokens_of

log = logging.getLogger(__name__)

ADMIT: Final = "/v1/admit/"
_OWN: Final = frozenset({"/healthz", "/readyz", "/metrics", "/state"})
# A plain string would be folded with each look.
SIZE_HEADER: Final = istr("x-kvtier-bytes")
STATED_HEADER: Final = istr("x-prompt-tokens")
# Gateways hand all of a refusal's headers on, aiohttp's version too if it were named.
_REFUSALS: Final = {
    seconds: (
        {"Retry-After": str(seconds), "Server": "kvtier", "Content-Type": "application/json"},
        refusal(seconds).encode(),
    )
    for seconds in range(1, LONGEST_SECONDS + 1)
}


class Handler:
    """One request to one answer. ``not_ready`` gives the reason why traffic should go elsewhere,
    None while it should not."""

    def __init__(
        self,
        gates: Gates,
        peers: Peers,
        registry: CollectorRegistry,
        *,
        not_ready: Callable[[], str | None],
    ) -> None:
        self.stopping = False
        self._gates, self._peers, self._registry = gates, peers, registry
        self._not_ready = not_ready
        self._clock = gates.clock
        self._random = random.random

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path
        if path.startswith(ADMIT):
            try:
                answer = self.admit(request, path)
            except Exception:
                # Whatever is wrong here is no reason to refuse anybody.
                log.exception("a request is let in that could not be judged")
                answer = web.Response()
        else:
            answer = await self._other(request, path.partition("?")[0])
        if self.stopping:
            answer.force_close()
        return answer

    def admit(self, request: web.BaseRequest, path: str) -> web.Response:
        """200, or 429 with Retry-After. ``path`` may go on behind the tier."""
        parts = path.split("/", 5)
        gate = None
        if len(parts) > 4:
            name = parts[4].partition("?")[0]
            gate = self._gates.find(parts[3], name)
        if gate is None:
            return web.Response()
        headers = request.headers
        length = number_of(headers.get(SIZE_HEADER))
        tokens = tokens_of(
            method=request.method,
            length=length,
            stated=headers.get(STATED_HEADER),
            mean=gate.bounds.mean_prompt,
        )
        if length is None and tokens > 0:
            gate.unsized += 1
        wait = gate.decide(tokens, self._clock())
        if wait == 0.0:
            return web.Response()
        seconds = retry_after(
            wait=wait,
            offered=gate.meter.demand,
            rate=gate.bucket.rate if gate.bucket is not None else 0.0,
            random=self._random,
        )
        named, body = _REFUSALS[seconds]
        return web.Response(status=429, body=body, headers=named)

    async def _other(self, request: web.BaseRequest, path: str) -> web.Response:
        if path == "/peers":
            return await self._talk(request)
        if path not in _OWN and not path.startswith("/state/"):
            # A gateway that asks in the wrong place would refuse everybody by any other answer.
            self._gates.unknown += 1
            return web.Response(text="no such path; ask /v1/admit/NAMESPACE/TIER or /state\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET\n", headers={"Allow": "GET"})
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            reason = self._not_ready()
            return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)
        if path == "/metrics":
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
            body = encode(self._registry)
            return web.Response(body=body, headers={"Content-Type": content_type})
        return self._state(path)

    def _state(self, path: str) -> web.Response:
        now = self._clock()
        _, *wanted = path.strip("/").split("/")
        tiers = [
            state_of(gate, now=now)
            for gate in self._gates.all()
            if not wanted or [gate.namespace, gate.name] == wanted
        ]
        if wanted and not tiers:
            error = {"error": f"no tier {'/'.join(wanted)} is known; GET /state lists all"}
            return _json(error, status=404)
        if wanted:
            return _json(tiers[0])
        page = {"replica": self._peers.replica, "peers": self._gates.peers(), "tiers": tiers}
        return _json(page)

    async def _talk(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            try:
                report = from_json(json.loads(await request.read()))
            except (BadReport, ValueError, RecursionError) as error:
                return web.Response(status=400, text=f"{str(error).splitlines()[0]}\n")
            except web.HTTPRequestEntityTooLarge:
                return web.Response(status=413, text="a report has at most 1 MiB\n")
            self._peers.told(report, host=request.remote)
        return _json(self._peers.document())


def _json(document: object, *, status: int = 200) -> web.Response:
    text = json.dumps(document) + "\n"
    return web.Response(status=status, text=text, content_type="application/json")
