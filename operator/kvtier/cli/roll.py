"""``kvtier roll``: ask the operator to restart all ranks of a tier, in one planned storm.

Exits 0 when all ranks are back (with ``--no-wait``: when it was asked for), 1 when they cannot
restart or are not back in time, 2 when the tier cannot be asked.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.cli import flags, live, output, terminal
from kvtier.cli.active import controller
from kvtier.cli.errors import BadInput
from kvtier.cluster.protocol import TIER, ApiError, Cluster, Object, Unavailable
from kvtier.plan.planned import ROLL_REQUESTED

NOT_ROLLED: Final = 1
TIMEOUT: Final = "10m"
"""Limiters take 30 s at most, and ranks a minute; another tier's work may take half an hour."""
LONGEST: Final = "2h"
POLL: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_request(parser, timeout=TIMEOUT, longest=LONGEST)
    parser.epilog = (
        "All that the ranks hold is lost: until it is stored again, what would have hit is\n"
        "recomputed. docs/planned-work.md has what happens before they restart.\n\n"
        "exit codes: 0 all ranks are back (with --no-wait: it was asked for), 1 they cannot\n"
        "restart, or are not back in time, 2 the tier cannot be asked."
    )


def run(arguments: argparse.Namespace) -> int:
    async def work(cluster: Cluster, namespace: str) -> Object:
        ends = time.monotonic() + arguments.timeout
        before = await live.read_tier(cluster, namespace, arguments.name)
        await _may_come(cluster, before)
        asked = await _ask(cluster, namespace, arguments.name)
        if not arguments.no_wait:
            output.say(f"a roll was asked for at {_request(asked)}; waiting for it")
            await _wait(cluster, asked, before=_started(before), ends=ends)
        return asked

    try:
        asked = live.ask(arguments, work)
    except _NoRoll as error:
        output.say(str(error))
        return NOT_ROLLED
    metadata = asked["metadata"]
    where = {"namespace": metadata["namespace"], "name": metadata["name"]}
    if arguments.output != "table":
        print(
            output.document({**where, "rollRequested": _request(asked)}, arguments.output), end=""
        )
    elif arguments.no_wait:
        print(f"A roll of {'/'.join(where.values())} was asked for at {_request(asked)}.")
    else:
        print(f"All ranks of {'/'.join(where.values())} have restarted, empty.")
    return 0


class _NoRoll(Exception):
    """Why no rank restarts, or is back, in one line."""


async def _may_come(cluster: Cluster, body: Object) -> None:
    """Raises _NoRoll where nobody would do it."""
    runs = await controller(cluster, now=datetime.now(UTC))
    if runs.active is False:
        raise _NoRoll(runs.hint)
    metadata = body["metadata"]
    if (body.get("spec") or {}).get("paused"):
        raise _NoRoll(
            f"KVCacheTier {metadata['namespace']}/{metadata['name']}: paused, and a paused tier is"
            " not restarted; set spec.paused to false"
        )


async def _ask(cluster: Cluster, namespace: str, name: str) -> Object:
    """The tier with the request."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    patch = {"metadata": {"annotations": {ROLL_REQUESTED: at}}}
    try:
        return await cluster.merge_patch(TIER, namespace, name, patch)
    except Unavailable:
        raise
    except ApiError as error:
        raise BadInput(
            f"KVCacheTier {namespace}/{name}: {error}; a roll is asked for by an annotation, which"
            " takes the right to patch the tier"
        ) from None


async def _wait(cluster: Cluster, asked: Object, *, before: Mapping[int, str], ends: float) -> None:
    """Until every rank has started since, and is Ready; says meanwhile what it waits for."""
    with terminal.bar("until limiters know", total=max(len(before), 1)) as bar:
        await _back(cluster, asked, before=before, ends=ends, bar=bar)


async def _back(
    cluster: Cluster, asked: Object, *, before: Mapping[int, str], ends: float, bar: terminal.Bar
) -> None:
    metadata, told = asked["metadata"], ""
    while True:
        body = await live.read_tier(cluster, metadata["namespace"], metadata["name"])
        store = find((body.get("status") or {}).get("conditions", ()), reasons.STORE_READY)
        now = _started(body)
        started = sum(now[rank] != before.get(rank) for rank in now)
        fresh = bool(now) and started == len(now)
        if started:
            bar.at(started, f"{started} of {len(now)} ranks have restarted")
        if fresh and store.get("status") == "True":
            return
        said = store.get("message", "")
        if store.get("status") == "False" and said != told:
            output.say(said)
            told = said
        if time.monotonic() + POLL > ends:
            raise _NoRoll(f"not in time; it goes on: {said or 'the tier has no status yet'}")
        await asyncio.sleep(POLL)


def _started(body: Object) -> dict[int, str]:
    """By rank when its server started; empty for one that does not run."""
    states: list[dict[str, Any]] = (body.get("status") or {}).get("rankStates", [])
    return {each["rank"]: str(each.get("startedAt", "")) for each in states}


def _request(body: Object) -> str:
    return str(body["metadata"]["annotations"][ROLL_REQUESTED])
