"""``kvtier probe``: ask the operator to measure a tier now, and show what came of it.

Exits 0 with a new figure (with ``--no-wait``: when it was asked for), 1 when none can come, none
came or not in time, 2 when the tier cannot be asked.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from kvtier.api import reasons
from kvtier.cli import flags, live, output, probe_report, status, terminal
from kvtier.cli.active import Controller, controller
from kvtier.cli.errors import BadInput
from kvtier.cli.live_events import read_events
from kvtier.cli.live_pool import read_pool
from kvtier.cli.status import View
from kvtier.cluster.protocol import (
    EVENT,
    JOB,
    POD,
    TIER,
    ApiError,
    Cluster,
    Forbidden,
    Object,
    Unavailable,
)
from kvtier.placement.topology import Engine
from kvtier.plan.placement import engine_of
from kvtier.plan.probing import REQUESTED, is_finished, seconds_of
from kvtier.render.names import POOL_LABEL, probe_name

NO_FIGURE: Final = 1
TIMEOUT: Final = "6m"
"""A Job that gets no node ends after five."""
LONGEST: Final = "1h"
POLL: Final = 1.0
LOOK: Final = 10.0
"""Seconds after which it looks again whether there still is a controller."""
SETTLED: Final = 3.0
"""Seconds that a probe which has just ended has to reach the status."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_request(parser, timeout=TIMEOUT, longest=LONGEST)
    parser.epilog = (
        "exit codes: 0 there is a new figure (with --no-wait: it was asked for), 1 none can come,\n"
        "none came or not in time, 2 the tier cannot be asked. docs/probe.md has what a probe does."
    )


def run(arguments: argparse.Namespace) -> int:
    async def work(cluster: Cluster, namespace: str) -> _Came | Object:
        tier = _Tier(cluster, namespace=namespace, name=arguments.name)
        ends = time.monotonic() + arguments.timeout
        await _may_come(tier, ends=ends, waits=not arguments.no_wait)
        before = await tier.failures()
        body = await _ask(tier)
        return body if arguments.no_wait else await _wait(tier, body, before=before, ends=ends)

    try:
        came = live.ask(arguments, work)
    except _NoProbe as error:
        output.say(str(error))
        return NO_FIGURE
    if not isinstance(came, _Came):
        print(_asked_for(came, form=arguments.output), end="")
        return 0
    for line in came.troubles:
        output.say(line)
    status.show(came.view, form=arguments.output)
    return 0 if came.measured else NO_FIGURE


_Failures = dict[str, tuple[int, str]]
"""How often each event ProbeFailed was told, and its message."""


@dataclass(frozen=True, slots=True)
class _Came:
    """The tier after a probe, whether that gave a figure, and what nodes without one said."""

    view: View
    measured: bool
    troubles: list[str]


class _NoProbe(Exception):
    """Why there is no probe, in one line."""


@dataclass(frozen=True, slots=True)
class _Tier:
    """A tier in a cluster. Every method raises Unavailable when there is no answer."""

    cluster: Cluster
    namespace: str
    name: str

    async def read(self) -> Object:
        return await live.read_tier(self.cluster, self.namespace, self.name)

    async def view(self, body: Object) -> View:
        """What its screen shows; what has just measured it is at work."""
        where = (self.cluster, self.namespace, self.name)
        pool, history = await read_pool(*where), await read_events(*where)
        return View(body, Controller(True), pool, history)

    async def engines(self) -> list[Engine] | None:
        """None if this person may not know."""
        try:
            pods = await self.cluster.list(POD, self.namespace, f"{POOL_LABEL}={self.name}")
        except Forbidden:
            return None
        return [engine for pod in pods if (engine := engine_of(pod))]

    async def job(self) -> Object | None:
        """The probe that runs; None if there is none, or if this person may not know."""
        try:
            found = await self.cluster.get(JOB, self.namespace, probe_name(self.name))
        except Forbidden:
            return None
        return None if found is None or is_finished(found) else found

    async def failures(self) -> _Failures:
        """Those that events tell of; empty if this person may not know."""
        try:
            events = await self.cluster.list(
                EVENT, self.namespace, field_selector=f"involvedObject.name={self.name}"
            )
        except Forbidden:
            return {}
        return {
            event["metadata"]["name"]: (event.get("count") or 1, event.get("message", ""))
            for event in events
            if event.get("reason") == reasons.PROBE_FAILED
            and event.get("involvedObject", {}).get("kind") == TIER.kind
        }

    async def request(self, at: str) -> Object:
        patch = {"metadata": {"annotations": {REQUESTED: at}}}
        try:
            return await self.cluster.merge_patch(TIER, self.namespace, self.name, patch)
        except Unavailable:
            raise
        except ApiError as error:
            raise BadInput(
                f"KVCacheTier {self.namespace}/{self.name}: {error}; a probe is asked for by an "
                "annotation, which takes the right to patch the tier"
            ) from None


async def _may_come(tier: _Tier, *, ends: float, waits: bool) -> None:
    """Wait for the probe that runs already, if any. Raises _NoProbe if none can come."""
    body, engines = await tier.read(), await tier.engines()
    runs = await controller(tier.cluster, now=datetime.now(UTC))
    if runs.active is False:
        raise _NoProbe(runs.hint)
    if why := probe_report.obstacle(body, engines):
        raise _NoProbe(why)
    if waits and await tier.job():
        # Of its figure nobody could tell whether it is of before the request.
        output.say("a probe runs already; another is asked for once it has ended")
        with terminal.bar("until the probe that runs has ended"):
            while job := await tier.job():
                await _pause(tier, job, ends=ends)
        await asyncio.sleep(min(SETTLED, max(ends - time.monotonic(), 0)))
    elif hint := probe_report.never_probed(body, engines, now=datetime.now(UTC)):
        output.say(hint)


async def _ask(tier: _Tier) -> Object:
    """The tier with the request."""
    # The operator takes a request that is older than its last figure for one that was answered,
    # and this clock may be behind.
    last = datetime.fromtimestamp(seconds_of(_measured_at(await tier.read())), UTC)
    at = max(datetime.now(UTC), last + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return await tier.request(at)


async def _wait(tier: _Tier, asked: Object, *, before: _Failures, ends: float) -> _Came:
    """Until there is another figure than there was, or a node that gave none; ``before`` are the
    failures before the request."""
    output.say(f"a probe was asked for at {_request(asked)}; waiting for it")
    with terminal.bar("the operator has not begun yet") as bar:
        return await _figure(tier, asked, before=before, ends=ends, bar=bar)


async def _figure(
    tier: _Tier, asked: Object, *, before: _Failures, ends: float, bar: terminal.Bar
) -> _Came:
    seen, look = None, time.monotonic() + LOOK
    while True:
        # In this order: what failed is told after the status is written.
        failed = await tier.failures()
        body = await tier.read()
        measured = _measured_at(body) not in (None, _measured_at(asked))
        told = [found[1] for name, found in failed.items() if found != before.get(name)]
        if told or measured:
            return _Came(await tier.view(body), measured=measured, troubles=told)
        if time.monotonic() >= look:
            runs, look = await controller(tier.cluster, now=datetime.now(UTC)), look + LOOK
            if runs.active is False:
                raise _NoProbe(runs.hint)
        job = await tier.job()
        if job is not None:
            bar.says(f"Job {probe_name(tier.name)} measures from {probe_report.node_of(job)}")
        seen = job or seen
        await _pause(tier, seen, ends=ends)


async def _pause(tier: _Tier, job: Object | None, *, ends: float) -> None:
    """Wait a little. Raises _NoProbe when the time is over; ``job`` is what was seen of it."""
    if time.monotonic() + POLL <= ends:
        await asyncio.sleep(POLL)
        return
    body, engines = await tier.read(), await tier.engines()
    name = probe_name(tier.name)
    raise _NoProbe(probe_report.obstacle(body, engines) or probe_report.too_late(name, job))


def _asked_for(body: Object, *, form: str) -> str:
    metadata = body["metadata"]
    where = {"namespace": metadata["namespace"], "name": metadata["name"]}
    if form == "table":
        return f"A probe of {'/'.join(where.values())} was asked for at {_request(body)}.\n"
    return output.document({**where, "probeRequested": _request(body)}, form)


def _request(body: Object) -> str:
    return str(body["metadata"]["annotations"][REQUESTED])


def _measured_at(body: Object) -> str | None:
    measured = (body.get("status") or {}).get("measured") or {}
    at: str | None = measured.get("at")
    return at
