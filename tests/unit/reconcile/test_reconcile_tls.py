"""The reconciler on fakes: TLS on, off, renewed, broken and mended. Certificates are real."""

import base64
import json
from typing import Any

import pytest
from prometheus_client import generate_latest
from tier_harness import KEY, Operator, again, spec
from tls_tier import DAY, NAMES, NAMESPACE, TLS, certificates, deliver, engine_files, put

from certificates import Ca, Pair
from kvtier.api import reasons
from kvtier.cluster.protocol import CONFIGMAP, SECRET, SERVICE


def expiry(operator: Operator) -> float | None:
    text = generate_latest(operator.reconciler._metrics.registry).decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("kvtier_tier_certificate_expiry_timestamp_seconds{")
    ]
    return float(lines[0].rpartition(" ")[2]) if lines else None


async def test_a_tier_with_tls_comes_up_and_its_engines_get_the_ca(
    served: Operator, ca: Ca
) -> None:
    files = engine_files(served)
    assert files["ca.crt"] == ca.pem
    assert json.loads(files["connection.json"])["tls"] is True
    adapter = json.loads(files["l2-adapter.json"])["adapter_params"]
    assert (adapter["tls"], adapter["ca"]) == (True, "/kvtier/ca.crt")
    before = len(served.cluster.writes)
    await served.resync()
    assert len(served.cluster.writes) == before


async def test_a_tier_without_tls_tells_its_engines_so(ready: Operator) -> None:
    files = engine_files(ready)
    assert "ca.crt" not in files
    assert json.loads(files["connection.json"])["tls"] is False
    assert expiry(ready) is None


async def test_without_its_secret_a_new_tier_makes_nothing_that_mounts_it(
    operator: Operator, ca: Ca, first: Pair
) -> None:
    operator.apply(spec(**TLS))
    await operator.settle()
    assert operator.condition("StoreReady")["reason"] == reasons.TLS_SECRET_NOT_FOUND
    assert operator.condition("StoreReady")["status"] == "False"
    assert "ranks-tls" in operator.condition("StoreReady")["message"]
    assert reasons.TLS_SECRET_NOT_FOUND in operator.recorder.reasons()
    assert operator.statefulsets() == {}
    assert operator.cluster.all(CONFIGMAP) == []
    assert operator.cluster.peek(SECRET, NAMESPACE, operator.status()["engineSecret"]) is None
    put(operator, first, ca.pem)
    result = await operator.reconciler.reconcile(KEY, frozenset())
    assert result.requeue_after is not None
    await operator.settle()
    operator.queue.add(KEY)
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"
    # What had never been there was not made again.
    assert operator.recorder.reasons().count(reasons.CREATED) == 2
    assert reasons.REPAIRED not in operator.recorder.reasons()


async def test_a_secret_that_cannot_be_used_is_looked_at_every_30_seconds(
    operator: Operator,
) -> None:
    operator.apply(spec(**TLS))
    result = await operator.reconciler.reconcile(KEY, frozenset({"KVCacheTier"}))
    assert result.requeue_after is not None
    assert result.requeue_after <= 30
    reads = len(operator.cluster.requests)
    await operator.reconciler.reconcile(KEY, frozenset())
    read = [request.name for request in operator.cluster.requests[reads:]]
    assert "ranks-tls" in read
    assert len(read) < 5


def bad_secrets(ca: Ca, other: Ca, first: Pair) -> dict[str, tuple[Pair, str]]:
    return {
        reasons.TLS_SECRET_INVALID: (Pair(first.certificate, "junk"), ca.pem),
        reasons.TLS_KEY_MISMATCH: (Pair(first.certificate, ca.issue(*NAMES).key), ca.pem),
        reasons.TLS_CERTIFICATE_UNTRUSTED: (first, other.pem),
        reasons.TLS_CERTIFICATE_EXPIRED: (ca.issue(*NAMES, begin=-9 * DAY, end=-DAY), ca.pem),
        reasons.TLS_NAMES_MISSING: (ca.issue(NAMES[0]), ca.pem),
    }


async def test_a_secret_that_turns_bad_is_told_and_harms_no_rank_that_runs(
    served: Operator, ca: Ca, other_ca: Ca, first: Pair
) -> None:
    pods, shown = served.uids(), certificates(served)
    for reason, (pair, authority) in bad_secrets(ca, other_ca, first).items():
        put(served, pair, authority)
        deliver(served)
        await served.resync()
        assert served.condition("StoreReady")["reason"] == reason
        assert served.condition("Ready")["status"] == "False"
        assert engine_files(served)["ca.crt"] == ca.pem
    # Nothing that would restart them does either, and what mounts it is not made again.
    served.apply(spec(**TLS, memoryPerRank="512Mi"))
    served.cluster.remove(CONFIGMAP, NAMESPACE, "demo-valkey")
    served.cluster.remove(SERVICE, NAMESPACE, "demo-r1")
    await served.settle()
    assert served.uids() == pods
    assert served.cluster.all(CONFIGMAP) == []
    assert served.cluster.peek(SERVICE, NAMESPACE, "demo-r1") is not None
    assert certificates(served) == shown
    put(served, first, ca.pem)
    deliver(served)
    await again(served, 30)
    await again(served, 30)
    assert served.condition("Ready")["status"] == "True"


async def test_a_secret_that_is_lost_leaves_the_ranks_and_kvtiers_sessions(
    served: Operator, ca: Ca
) -> None:
    pods = served.uids()
    served.cluster.remove(SECRET, NAMESPACE, "ranks-tls")
    served.restart()
    served.queue.add(KEY)
    await served.settle()
    assert served.condition("StoreReady")["reason"] == reasons.TLS_SECRET_NOT_FOUND
    served.apply(spec(**TLS, eviction="LFU"))
    await served.settle()
    assert {served.server(pod).config["maxmemory-policy"] for pod in pods} == {"allkeys-lfu"}
    assert served.uids() == pods


async def test_turning_tls_on_restarts_all_ranks_and_so_does_turning_it_off(
    ready: Operator, ca: Ca, first: Pair
) -> None:
    before = ready.uids()
    put(ready, first, ca.pem)
    ready.apply(spec(**TLS))
    await ready.settle()
    on = ready.uids()
    assert not set(before.values()) & set(on.values())
    assert ready.condition("Ready")["status"] == "True"
    assert engine_files(ready)["ca.crt"] == ca.pem
    assert expiry(ready) is not None
    ready.apply(spec(tls=None))
    await ready.settle()
    assert not set(on.values()) & set(ready.uids().values())
    assert ready.condition("Ready")["status"] == "True", ready.condition("Ready")
    assert "ca.crt" not in engine_files(ready)
    assert expiry(ready) is None


async def test_turning_tls_on_with_a_bad_secret_leaves_the_ranks_and_engines_without_it(
    ready: Operator, ca: Ca
) -> None:
    pods, files = ready.uids(), engine_files(ready)
    conf = ready.cluster.peek(CONFIGMAP, NAMESPACE, "demo-valkey")
    put(ready, ca.issue("elsewhere"), ca.pem)
    ready.apply(spec(**TLS))
    await ready.settle()
    assert ready.condition("StoreReady")["reason"] == reasons.TLS_NAMES_MISSING
    assert ready.uids() == pods
    assert engine_files(ready) == files
    assert ready.cluster.peek(CONFIGMAP, NAMESPACE, "demo-valkey") == conf
    # kvtier still reaches them, as they are.
    calls = ready.server("demo-r0-0").calls
    calls.clear()
    await ready.resync()
    assert "config_get" in {call.name for call in calls}
    assert ready.condition("StoreReady")["reason"] == reasons.TLS_NAMES_MISSING


async def test_a_renewed_certificate_is_served_without_a_restart(served: Operator, ca: Ca) -> None:
    pods, old = served.uids(), certificates(served)
    put(served, ca.issue(*NAMES, end=9 * DAY), ca.pem)
    await served.resync()
    # The kubelets have not delivered it yet: the tier serves on, and says what it waits for.
    assert certificates(served) == old
    assert served.condition("Ready")["status"] == "True"
    assert (
        "yet to be delivered to the pod of rank 0, 1" in served.condition("StoreReady")["message"]
    )
    result = await served.reconciler.reconcile(KEY, frozenset())
    assert result.requeue_after is not None
    assert result.requeue_after <= 5
    deliver(served)
    await again(served, 5)
    new = certificates(served)
    assert not set(old) & set(new)
    assert served.uids() == pods
    assert "CertificateReloaded" in served.recorder.reasons()
    await again(served, 5)
    assert "delivered" not in served.condition("StoreReady")["message"]
    before = len(served.cluster.writes)
    calls = len(served.server("demo-r0-0").calls)
    await again(served, 60)
    assert len(served.cluster.writes) == before
    assert len(served.server("demo-r0-0").calls) == calls


async def test_the_metric_is_the_first_end_of_what_is_in_the_secret_and_what_is_served(
    served: Operator, ca: Ca, first: Pair
) -> None:
    begun = expiry(served)
    assert begun is not None
    put(served, ca.issue(*NAMES, end=20 * DAY), ca.pem)
    await served.resync()
    assert expiry(served) == begun
    deliver(served)
    await again(served, 5)
    later = expiry(served)
    assert later is not None
    assert later == pytest.approx(begun + 15 * 86400, abs=600)


async def test_a_certificate_is_renewed_in_a_paused_tier_too(served: Operator, ca: Ca) -> None:
    old = certificates(served)
    served.apply(spec(**TLS) | {"paused": True})
    await served.settle()
    put(served, ca.issue(*NAMES), ca.pem)
    deliver(served)
    await served.resync()
    await again(served, 5)
    assert not set(old) & set(certificates(served))


async def test_an_expired_certificate_that_is_served_is_told_and_replaced(
    served: Operator, ca: Ca
) -> None:
    pods = served.uids()
    expired = ca.issue(*NAMES, begin=-9 * DAY, end=-DAY)
    for name in pods:
        server = served.server(name)
        server.mounted = expired.files()
        server.set_config({"tls-cert-file": "/etc/valkey/tls/tls.crt"})
    put(served, ca.issue(*NAMES), ca.pem)
    await served.resync()
    assert served.condition("StoreReady")["reason"] == "SettingsNotApplied"
    assert "has expired" in served.condition("StoreReady")["message"]
    deliver(served)
    await again(served, 5)
    await again(served, 5)
    assert served.condition("Ready")["status"] == "True"
    assert served.uids() == pods


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_new_ca_is_trusted_beside_the_old_one_until_every_rank_has_its_certificate(
    restarted: bool, served: Operator, ca: Ca, other_ca: Ca
) -> None:
    pods = served.uids()
    put(served, other_ca.issue(*NAMES), other_ca.pem)
    await served.resync()
    assert engine_files(served)["ca.crt"] == other_ca.pem + ca.pem
    if restarted:
        served.restart()
        served.queue.add(KEY)
        await served.settle()
    before = len(served.cluster.writes)
    await again(served, 5)
    assert len(served.cluster.writes) == before
    deliver(served)
    await again(served, 5)
    await again(served, 5)
    assert engine_files(served)["ca.crt"] == other_ca.pem
    assert served.condition("Ready")["status"] == "True"
    assert served.uids() == pods


async def test_a_rank_under_another_name_is_not_told_a_token(served: Operator, ca: Ca) -> None:
    other = ca.issue("elsewhere")
    server = served.server("demo-r1-0")
    server.mounted = other.files()
    server.set_config({"tls-cert-file": "/etc/valkey/tls/tls.crt"})
    calls = len(server.calls)
    await served.resync()
    assert served.condition("StoreReady")["reason"] == reasons.TLS_RANK_UNTRUSTED
    assert "certificate is not trusted" in served.condition("StoreReady")["message"]
    assert {call.name for call in server.calls[calls:]} == {"connect"}


async def test_a_child_lost_beside_an_untrusted_rank_was_repaired_not_created(
    served: Operator, ca: Ca
) -> None:
    server = served.server("demo-r1-0")
    server.mounted = ca.issue("elsewhere").files()
    server.set_config({"tls-cert-file": "/etc/valkey/tls/tls.crt"})
    await served.resync()
    assert served.condition("StoreReady")["reason"] == reasons.TLS_RANK_UNTRUSTED
    served.cluster.remove(SERVICE, NAMESPACE, "demo-r0")
    await served.settle()
    told = [f"{event.reason}: {event.message}" for event in served.recorder.events]
    assert told[-1] == "Repaired: Created again: Service demo-r0."


async def test_a_lost_record_is_adopted_from_ranks_that_speak_tls(served: Operator) -> None:
    token = engine_files(served)["token"]
    engine = served.status()["engineSecret"]
    served.cluster.remove(SECRET, NAMESPACE, "demo-acl")
    served.restart()
    served.queue.add(KEY)
    await served.settle()
    assert served.condition("Ready")["status"] == "True"
    found: Any = served.cluster.peek(SECRET, NAMESPACE, engine)
    assert base64.b64decode(found["data"]["token"]).decode() == token
