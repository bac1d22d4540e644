"""``kvtier watch``: what changes in tiers, a line each, as it comes.

Goes on until it is stopped (exit code 130), whatever the API server does meanwhile.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from kvtier.cli import alerts, colour, flags, live, live_events, output, terminal
from kvtier.cli.active import Controller, controller
from kvtier.cli.changes import NORMAL, WARNING
from kvtier.cli.errors import BadInput
from kvtier.cli.watch_changes import Line, between, event_line, first, gone
from kvtier.cluster.client import AioCluster
from kvtier.cluster.follow import Seen, What, follow
from kvtier.cluster.protocol import EVENT, TIER, ApiError, Forbidden, NotFound, Object, Unavailable

LOOK: Final = 10.0
"""Seconds between two looks at alerts, and at the Lease of the controller."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_name(parser, everything="all of the namespace")
    flags.add_cluster(parser, everywhere=True)
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json: one object a line"
    )
    servers = parser.add_mutually_exclusive_group()
    servers.add_argument(
        "--prometheus", metavar="URL", help="also show alerts of this Prometheus, as they change"
    )
    servers.add_argument(
        "--alertmanager", metavar="URL", help="the same from this Alertmanager, with silences"
    )
    parser.epilog = "Times are UTC. It ends by Ctrl-C, with exit code 130."


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is not None and arguments.all_namespaces:
        raise BadInput("-A: and a name too; leave out one of them")
    source = _source(arguments)

    async def work(cluster: AioCluster, namespace: str) -> NoReturn:
        watch = _Watch(
            cluster,
            namespace="" if arguments.all_namespaces else namespace,
            tier=arguments.name or "",
            as_json=arguments.output == "json",
            source=source,
        )
        await watch.run()

    live.ask(arguments, work)


def _source(arguments: argparse.Namespace) -> alerts.Source | None:
    url = arguments.prometheus or arguments.alertmanager
    if url is None:
        return None
    flag = "--prometheus" if arguments.prometheus else "--alertmanager"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        # Who pasted a password is not shown it again.
        shown = "it" if "@" in url else repr(url)
        raise BadInput(f"{flag}: {shown} is no URL; write one such as http://127.0.0.1:9090")
    return alerts.prometheus(url) if arguments.prometheus else alerts.alertmanager(url)


@dataclass(slots=True)
class _Watch:
    """Prints; ``namespace`` "" is all of them, ``tier`` "" all in it."""

    cluster: AioCluster
    namespace: str
    tier: str
    as_json: bool
    source: alerts.Source | None
    tiers: dict[str, Object] | None = None
    """By namespace and name; None until they were listed once."""
    events: dict[str, tuple[Any, ...]] | None = None
    runs: Controller | None = None

    async def run(self) -> NoReturn:
        """Until it is cancelled. Raises BadInput without the right to see tiers."""
        tiers = follow(
            self.cluster,
            TIER,
            self.namespace,
            field_selector=f"metadata.name={self.tier}" if self.tier else "",
        )
        events = follow(
            self.cluster, EVENT, self.namespace, field_selector=live_events.selector(self.tier)
        )
        work: list[Awaitable[None]] = [self._tiers(tiers), self._events(events), self._controller()]
        if self.source is not None:
            work.append(self._alerts(self.source))
        await asyncio.gather(*work)
        raise AssertionError("a watch has no end")

    async def _tiers(self, seen: AsyncIterator[Seen]) -> None:
        try:
            async for each in seen:
                self._tier(each)
        except NotFound:
            raise BadInput(live.NO_KIND) from None
        except ApiError as error:
            where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
            raise BadInput(
                f"KVCacheTiers: {error}; this takes the right to list and watch them {where}"
            ) from None

    def _tier(self, seen: Seen) -> None:
        if seen.what in (What.AWAY, What.BACK):
            self._server(seen)
            return
        if seen.what is not What.LISTED:
            self._changed(seen.objects[0], deleted=seen.what is What.DELETED)
            return
        found = {_key(body): body for body in seen.objects}
        if self.tiers is None:
            self.tiers = {}
            if not found:
                self._print(_waits(self.namespace, self.tier))
        for key in [key for key in self.tiers if key not in found]:
            self._changed(self.tiers[key], deleted=True)
        for body in found.values():
            self._changed(body)

    def _changed(self, body: Object, *, deleted: bool = False) -> None:
        assert self.tiers is not None
        key = _key(body)
        before = self.tiers.pop(key, None)
        if deleted:
            self._print(gone(body))
            return
        self.tiers[key] = body
        for line in first(body) if before is None else between(before, body):
            self._print(line)

    def _server(self, seen: Seen) -> None:
        away = seen.what is What.AWAY
        said = f"the API server is away: {seen.message}" if away else "the API server is back"
        if "401 Unauthorized" in seen.message:
            said += " (if it lasts: the credentials of the kubeconfig are not accepted)"
        self._print(Line("Server", said, severity=WARNING if away else NORMAL))

    async def _events(self, seen: AsyncIterator[Seen]) -> None:
        try:
            async for each in seen:
                self._event(each)
        except Forbidden:
            output.say(live_events.missing(self.namespace, "list and watch"))
        except ApiError as error:
            output.say(f"Events are not known: {error}")

    def _event(self, seen: Seen) -> None:
        """What was there before is known from ``kvtier status``. The tiers' watch tells of the
        server."""
        if seen.what in (What.AWAY, What.BACK):
            return
        new = {each["metadata"]["uid"]: _version(each) for each in seen.objects}
        if seen.what is What.LISTED:
            known, self.events = self.events, new
            if known is None:
                return
        else:
            assert self.events is not None
            if seen.what is What.DELETED:
                for uid in new:
                    self.events.pop(uid, None)
                return
            known = {uid: self.events[uid] for uid in new if uid in self.events}
            self.events |= new
        for each in seen.objects:
            uid = each["metadata"]["uid"]
            if known.get(uid) != new[uid] and _is_about(each, self.tier):
                self._print(event_line(each))

    async def _controller(self) -> None:
        while True:
            try:
                runs = await controller(self.cluster, now=datetime.now(UTC))
            except Unavailable:
                runs = self.runs or Controller()
            before, self.runs = self.runs, runs
            if runs.active is None and runs.hint and before is None:
                output.say(runs.hint)
            elif runs.active is not None and (before is None or before.active != runs.active):
                if not runs.active:
                    self._print(Line("Controller", runs.hint, severity=WARNING))
                elif before is not None:
                    self._print(Line("Controller", "a controller runs again"))
            await asyncio.sleep(LOOK)

    async def _alerts(self, source: alerts.Source) -> None:
        known: dict[object, alerts.Alert] = {}
        told = ""
        while True:
            try:
                found = await alerts.read(source, namespace=self.namespace, tier=self.tier)
            except alerts.NoAlerts as error:
                if not told:
                    output.say(str(error))
                told = str(error)
            else:
                if told:
                    output.say(f"{source.name} answers again")
                told = ""
                for line in alerts.changes(known, found):
                    self._print(line)
                known = found
            await asyncio.sleep(LOOK)

    def _print(self, line: Line) -> None:
        now = datetime.now(UTC)
        if self.as_json:
            at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
            text = json.dumps(line.document(at), ensure_ascii=False)
        else:
            text = terminal.plain(line.text(now.strftime("%H:%M:%S"), named=not self.tier))
            if terminal.colours():
                text = colour.of_line(text, warns=line.severity == WARNING)
        print(text, flush=True)


def _waits(namespace: str, tier: str) -> Line:
    where = f"namespace {namespace}" if namespace else "the cluster"
    what = f"KVCacheTier {tier}" if tier else "KVCacheTier"
    return Line("Tier", f"no {what} in {where} yet; waiting for one")


def _key(body: Object) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def _version(event: Object) -> tuple[Any, ...]:
    """What is another one when it has happened again."""
    series = event.get("series") or {}
    return event.get("count"), event.get("lastTimestamp"), series.get("count")


def _is_about(event: Object, tier: str) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("kind") == TIER.kind and tier in ("", about.get("name"))
