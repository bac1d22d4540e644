"""One ``kvtier controller`` before which a real API server misbehaves in every way it can.

The process goes through all of it. While a fault lasts a child is deleted; what counts is that the
requests meanwhile stay few, and how soon the child is there again once the fault has gone.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from apiserver_process import ApiServer
from controller_process import Controller, apply_tier, controller, get, wait_for
from fault_proxy import FaultProxy, Seen, proxy, status, watch_error

TIERS = ("alpha", "beta")
WATCHED = 6
LEASE_SECONDS = 10.0
RECOVERY = 6.0
"""Seconds in which all is well again: watches try every 3 s, the Lease and reconciles sooner."""


@dataclass(frozen=True, slots=True)
class Setup:
    server: ApiServer
    proxy: FaultProxy
    controller: Controller
    namespace: str

    def delete_service(self, tier: str) -> str:
        """Delete a rank's Service and return the uid that it had."""
        uid = str(self.service(tier)["metadata"]["uid"])
        answer = self.server.kubectl("delete", "svc", f"{tier}-r0", "-n", self.namespace)
        assert answer.code == 0, answer.message
        return uid

    def service(self, tier: str) -> dict:
        return get(self.server, "svc", f"{tier}-r0", "-n", self.namespace)

    def is_back(self, tier: str, old: str) -> bool:
        return self.service(tier).get("metadata", {}).get("uid", old) != old

    def wait_back(self, tier: str, old: str, *, seconds: float = RECOVERY) -> None:
        """Wait until the Service exists again: threefold, for a machine that is busy."""
        wait_for(lambda: self.is_back(tier, old), seconds=3 * seconds)


@pytest.fixture(scope="module")
def setup(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    directory = tmp_path_factory.mktemp("faults")
    namespace = f"faults-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", namespace).code == 0
    # Tiers that other tests left would be served too, and nobody here empties a namespace.
    assert apiserver.kubectl("delete", "kvt", "--all", "--all-namespaces").code == 0
    with (
        proxy(apiserver, directory) as between,
        controller(apiserver, directory, lease="faults", kubeconfig=between.kubeconfig) as process,
    ):
        wait_for(lambda: process.answers("/readyz") == 200)
        for tier in TIERS:
            apply_tier(apiserver, namespace, tier)
        made = Setup(server=apiserver, proxy=between, controller=process, namespace=namespace)
        for tier in TIERS:
            wait_for(lambda tier=tier: "status" in get(apiserver, "kvt", tier, "-n", namespace))
        yield made
        text = log(process.log)
        apiserver.kubectl("delete", "kvt", "--all", "-n", namespace)
        assert process.process.poll() is None, text
        assert process.stop() == 0
        assert "Traceback" not in text


@pytest.fixture(autouse=True)
def same_process_before_and_after(setup: Setup) -> Iterator[None]:
    yield
    assert setup.controller.process.poll() is None, log(setup.controller.log)
    assert setup.controller.metric("kvtier_leader") == 1


def log(path: Path) -> str:
    return path.read_text()[-4000:]


@contextmanager
def seconds_of(
    setup: Setup, fault: Callable[[web.Request], object], *, seconds: float
) -> Iterator[list[Seen]]:
    """The fault for so many seconds, and every request that came meanwhile (filled at the end)."""
    seen: list[Seen] = []
    begin = time.monotonic()
    with setup.proxy.failing(fault):
        yield seen
        time.sleep(max(begin + seconds - time.monotonic(), 0))
        seen += [each for each in setup.proxy.since(begin) if is_ours(each, setup.namespace)]


def is_ours(seen: Seen, namespace: str) -> bool:
    """Not about what other tests left in namespaces of theirs."""
    path = seen.path
    return "/namespaces/" not in path or f"/{namespace}/" in path or "/leases" in path


def by_path(seen: list[Seen]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in seen:
        what = f"{each.method} {each.path}{' watch' if each.is_watch else ''}"
        counts[what] = counts.get(what, 0) + 1
    return counts


def test_429_is_waited_out_as_long_as_it_says(setup: Setup) -> None:
    async def busy(_: web.Request) -> web.Response:
        return status(429, "TooManyRequests", headers={"Retry-After": "2"})

    before = setup.controller.metric('kvtier_api_requests_total{code="429"')
    with seconds_of(setup, busy, seconds=5) as seen:
        old = {tier: setup.delete_service(tier) for tier in TIERS}
    for tier in TIERS:
        setup.wait_back(tier, old[tier])
    # Each tier at once, then every 2 s: one read each time, which ends the reconcile.
    tiers = [each for each in seen if not each.is_lease]
    assert 2 <= len(tiers) <= 2 * 3 * 2, by_path(seen)
    after = setup.controller.metric('kvtier_api_requests_total{code="429"')
    assert after - before >= len(tiers)


def test_conflicts_without_end_are_tried_again_with_growing_delay(setup: Setup) -> None:
    async def conflict(request: web.Request) -> web.Response | None:
        if request.method == "PATCH" and "/services/" in request.path:
            return status(409, "Conflict")
        return None

    with seconds_of(setup, conflict, seconds=5) as seen:
        old = setup.delete_service("alpha")
    tries = [each for each in seen if each.method == "PATCH" and "/services/" in each.path]
    # Four looks 0.2 s apart, then 0.5 s, 1 s, 2 s ...
    assert 3 <= len(tries) <= 12, by_path(seen)
    setup.wait_back("alpha", old)


def test_watches_that_expire_again_and_again_are_opened_once_a_second(setup: Setup) -> None:
    async def expired(request: web.Request) -> web.StreamResponse | None:
        if "watch" not in request.query:
            return None
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(watch_error(410, "Expired"))
        await answer.write_eof()
        return answer

    setup.proxy.break_watches = watch_error(410, "Expired")
    with seconds_of(setup, expired, seconds=6) as seen:
        time.sleep(0.5)
        setup.proxy.break_watches = None
        old = setup.delete_service("alpha")
        # Deaf, but for the listing that follows every expiry, and that shows no deletion.
    watches = [each for each in seen if each.is_watch]
    assert WATCHED <= len(watches) <= WATCHED * (5 + 7), by_path(seen)
    setup.wait_back("alpha", old)


def test_a_list_whose_next_page_is_gone_begins_again(setup: Setup) -> None:
    gone = 0

    async def compacted(request: web.Request) -> web.Response | None:
        nonlocal gone
        if "continue" in request.query and gone < 12:
            gone += 1
            return status(410, "Expired")
        return None

    setup.proxy.page_size = 1
    setup.proxy.break_watches = watch_error(410, "Expired")
    with setup.proxy.failing(compacted):
        time.sleep(0.5)
        setup.proxy.break_watches = None
        wait_for(lambda: gone == 12)
        old = setup.delete_service("alpha")
        setup.wait_back("alpha", old)
    setup.proxy.page_size = 0


def test_500_for_longer_than_the_lease_ends_nothing_and_is_over_at_once(setup: Setup) -> None:
    async def broken(_: web.Request) -> web.Response:
        return status(500, "InternalError")

    setup.proxy.break_watches = watch_error(410, "Expired")
    with seconds_of(setup, broken, seconds=LEASE_SECONDS + 3) as seen:
        time.sleep(0.5)
        setup.proxy.break_watches = None
        old = {tier: setup.delete_service(tier) for tier in TIERS}
        wait_for(lambda: setup.controller.metric("kvtier_leader") == 0, seconds=30)
    for tier in TIERS:
        setup.wait_back(tier, old[tier])
    # The Lease once a second, six watched kinds at 0.5, 1, 2, 3, 3 ... s.
    assert len(seen) <= 20 + WATCHED * 8, by_path(seen)


def test_ten_seconds_a_request_and_silent_watches_cost_the_lease_and_nothing_else(
    setup: Setup,
) -> None:
    async def slow(_: web.Request) -> None:
        # As long as the client waits, and so the same as no answer at all.
        await asyncio.sleep(10)

    setup.proxy.silent.set()
    with seconds_of(setup, slow, seconds=LEASE_SECONDS + 3) as seen:
        old = {tier: setup.delete_service(tier) for tier in TIERS}
        wait_for(lambda: setup.controller.metric("kvtier_leader") == 0, seconds=30)
        assert setup.controller.answers("/healthz") == 200
    setup.proxy.silent.clear()
    assert len(seen) <= 15, by_path(seen)
    # What is under way when the server is quick again runs into its timeout first.
    for tier in TIERS:
        setup.wait_back(tier, old[tier], seconds=RECOVERY + 10)


def test_refused_tokens_are_shown_again_and_the_process_lives(setup: Setup) -> None:
    async def unauthorized(_: web.Request) -> web.Response:
        return status(401, "Unauthorized")

    setup.proxy.break_watches = watch_error(410, "Expired")
    with seconds_of(setup, unauthorized, seconds=4) as seen:
        time.sleep(0.5)
        setup.proxy.break_watches = None
        old = setup.delete_service("alpha")
    assert len(seen) <= 30, by_path(seen)
    setup.wait_back("alpha", old)


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (404, "NotFound")])
def test_a_right_or_a_crd_that_is_away_for_a_moment_leaves_no_kind_unwatched(
    setup: Setup, code: int, reason: str
) -> None:
    tier = f"gone-{code}"
    watched = ("/apis/kvtier.dev/v1alpha1/kvcachetiers", "/api/v1/services")

    async def away(request: web.Request) -> web.Response | None:
        return status(code, reason) if request.path in watched else None

    setup.proxy.break_watches = watch_error(410, "Expired")
    with seconds_of(setup, away, seconds=4) as seen:
        time.sleep(0.5)
        setup.proxy.break_watches = None
        old = setup.delete_service("alpha")
        apply_tier(setup.server, setup.namespace, tier)
    in_vain = [each for each in seen if each.path in watched]
    # Both at 0.5, 1, 2, 3 s.
    assert 4 <= len(in_vain) <= 16, by_path(in_vain)
    setup.wait_back("alpha", old)
    wait_for(
        lambda: "status" in get(setup.server, "kvt", tier, "-n", setup.namespace),
        seconds=3 * RECOVERY,
    )
    assert setup.server.kubectl("delete", "kvt", tier, "-n", setup.namespace).code == 0
