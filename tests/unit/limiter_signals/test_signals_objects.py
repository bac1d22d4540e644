"""Objects by list and watch, from an API server on its bad days."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from signals_kit import ApiServer, pod, serving, tier, until

from kvtier.cluster.protocol import POD
from kvtier.limiter import objects
from kvtier.limiter.objects import ObjectWatch
from kvtier.reconcile.clock import SystemClock


class Seen:
    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.seen: list[str] = []
        self.gone: list[str] = []
        self.watch: ObjectWatch


@asynccontextmanager
async def watching(server: ApiServer, namespace: str = "") -> AsyncIterator[Seen]:
    found = Seen()

    def names(these):
        return [each["metadata"]["name"] for each in these]

    async with serving(server) as cluster, cluster.watch_session(on_relist=print) as session:
        found.watch = ObjectWatch(
            POD,
            namespace=namespace,
            session=session,
            server=cluster.server,
            clock=SystemClock(),
            jitter=lambda: 0.0,
            listed=lambda pods: found.lists.append(names(pods)),
            seen=lambda each: found.seen.extend(names([each])),
            gone=lambda each: found.gone.extend(names([each])),
            selector="kvtier.dev/tier",
        )
        task = asyncio.create_task(found.watch.run(asyncio.Event()))
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "SHORTEST_PAUSE", 0.02)
    monkeypatch.setattr(objects, "LONGEST_PAUSE", 0.05)


async def test_all_are_listed_page_by_page_and_then_what_happens_is_told():
    server = ApiServer()
    server.page = 2
    server.objects["pods"] = [pod(name) for name in "abcde"]
    async with watching(server, "prefill") as found:
        await until(lambda: server.watchers("pods"))
        assert found.lists == [list("abcde")]
        server.tell("pods", "ADDED", pod("f"))
        server.tell("pods", "MODIFIED", pod("a"))
        server.tell("pods", "DELETED", pod("b"))
        await until(lambda: found.gone)
        assert (found.seen, found.gone) == (["f", "a"], ["b"])
    path, query = server.requests[-1]
    assert path == "/api/v1/namespaces/prefill/pods"
    assert query["labelSelector"] == "kvtier.dev/tier"
    assert (query["resourceVersion"], query["allowWatchBookmarks"]) == ("7", "true")


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark_without_a_list():
    server = ApiServer()
    async with watching(server) as found:
        await until(lambda: server.watchers("pods"))
        bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "99"}}
        server.tell("pods", "BOOKMARK", bookmark)
        server.tell_raw("pods", None)
        await until(lambda: server.requests[-1][1].get("resourceVersion") == "99")
        assert (server.lists("pods"), found.seen) == (1, [])
        assert found.watch.freshness.live


@pytest.mark.parametrize("within", [True, False])
async def test_a_version_that_is_too_old_leads_to_a_new_list(within: bool):
    server = ApiServer()
    async with watching(server) as found:
        await until(lambda: server.watchers("pods"))
        server.objects["pods"] = [pod("later")]
        if within:
            server.tell("pods", "ERROR", {"kind": "Status", "code": 410, "message": "too old"})
        else:
            server.too_old = True
            server.tell_raw("pods", None)
        await until(lambda: len(found.lists) == 2 and server.watchers("pods"))
        assert found.lists == [[], ["later"]]
        server.tell("pods", "ADDED", pod("f"))
        await until(lambda: found.seen == ["f"])


async def test_while_the_server_is_away_what_is_known_grows_old_and_then_all_is_listed():
    server = ApiServer()
    async with watching(server) as found:
        await until(lambda: server.watchers("pods"))
        assert found.watch.freshness.known_at(1e9) == 1e9
        server.away = True
        server.tell_raw("pods", None)
        await until(lambda: not found.watch.freshness.live)
        assert found.watch.freshness.at is not None
        assert found.watch.freshness.known_at(1e9) == found.watch.freshness.at
        asked = len(server.requests)
        await until(lambda: len(server.requests) >= asked + 3)
        server.away = False
        server.objects["pods"] = [pod("later")]
        await until(lambda: found.watch.freshness.live)
        assert found.lists[-1] == ["later"]


@pytest.mark.parametrize(
    "line", [b"{\n", b"[]\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":{}}\n']
)
async def test_an_event_that_is_none_leads_to_a_new_list(line: bytes):
    server = ApiServer()
    async with watching(server) as found:
        await until(lambda: server.watchers("pods"))
        server.tell_raw("pods", line)
        await until(lambda: len(found.lists) == 2 and found.watch.freshness.live)


async def test_a_right_that_is_missing_is_said_once_and_tried_again(caplog):
    server = ApiServer()
    server.refuses = True
    async with watching(server) as found:
        await until(lambda: len(server.requests) >= 3)
        assert not found.watch.freshness.live
        assert found.watch.freshness.known_at(5.0) is None
        said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert said == ["pods in all namespaces: not watched: 403: no such right"]
        server.refuses = False
        await until(lambda: found.watch.freshness.live)


async def test_an_object_of_two_megabytes_is_taken():
    server = ApiServer()
    async with watching(server) as found:
        await until(lambda: server.watchers("pods"))
        server.tell("pods", "ADDED", pod("big", annotations={"a": "x" * 2_000_000}))
        await until(lambda: found.seen == ["big"])
        assert server.lists("pods") == 1


def test_the_kit_s_tier_is_one():
    from kvtier.api.load import parse_tier

    assert parse_tier(tier()).spec.pool.ranks == 2
