"""A real API server asks the webhook, configured as the chart does, and kubectl prints."""

import base64
import copy
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apiserver_process import Answer, ApiServer
from controller_process import SPEC
from webhook_chart import KINDS, cert_manager_crds, rendered

from certificates import Ca
from webhook_process import Webhook, until, webhook, write

DENIED = 'admission webhook "kvcachetiers.kvtier.dev" denied the request: '
REFUSED = "spec.store.memoryPerRank: 64Mi leaves room for "
CHUNKS = {"pool": {"chunkTokens": 16384}}
SLOW = {
    "pool": {"hitLatency": "20ms", "hitEngineTime": "0s"},
    "placement": {"links": [{"domain": "zone", "bitsPerSecond": "1M", "roundTrip": "50us"}]},
}
HOPELESS = {
    "pool": {"hitLatency": "1s", "hitEngineTime": "1s"},
    "workload": {"hitTokens": [{"quantile": "1", "tokens": 1000}]},
}
HOLD_SECONDS = 2


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca("webhook")


@pytest.fixture
def namespace(apiserver: ApiServer) -> Iterator[str]:
    name = f"webhook-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", name).code == 0
    yield name
    gone = apiserver.kubectl("delete", "kvt", "--all", "-n", name)
    assert gone.code == 0, gone.message


@pytest.fixture
def process(ca: Ca, tmp_path: Path) -> Iterator[Webhook]:
    write(tmp_path, ca.issue("localhost"))
    with webhook(tmp_path) as found:
        until(lambda: found.answers("/readyz") == 200)
        yield found
        assert "Traceback" not in found.log.read_text()


@contextmanager
def asked(apiserver: ApiServer, namespace: str, *, url: str, ca: Ca, home: Path) -> Iterator[None]:
    """The API server asks the webhook at ``url`` about tiers of ``namespace``.

    The configuration is the chart's but for the address: nothing routes Services here.
    """
    bundle = base64.b64encode(ca.pem.encode()).decode()
    objects = rendered(
        f"watchNamespaces={{{namespace}}}",
        f"webhook.timeoutSeconds={HOLD_SECONDS}",
        namespace="kvtier-system",
        home=home,
    )
    (found,) = (each for each in objects if each["kind"] == "ValidatingWebhookConfiguration")
    assert found["webhooks"][0]["clientConfig"]["service"]["path"] == "/validate"
    found["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": bundle}
    created = apiserver.kubectl("create", "-f", "-", stdin=json.dumps(found))
    assert created.code == 0, created.message
    try:
        yield
    finally:
        name = found["metadata"]["name"]
        apiserver.kubectl("delete", "validatingwebhookconfiguration", name)


@pytest.fixture
def live(
    apiserver: ApiServer, namespace: str, process: Webhook, ca: Ca, tmp_path: Path
) -> Iterator[Webhook]:
    """A webhook that the API server is known to ask."""
    with asked(apiserver, namespace, url=process.url, ca=ca, home=tmp_path):
        until(lambda: apply(apiserver, tier(namespace, CHUNKS), "--dry-run=server").code != 0)
        yield process


def tier(
    namespace: str, changes: dict[str, dict[str, Any]] | None = None, **metadata: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(SPEC)
    # The other striping has a warning.
    spec["pool"]["striping"] = "Shard"
    for part, fields in (changes or {}).items():
        spec.setdefault(part, {}).update(fields)
    return {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "demo", "namespace": namespace, **metadata},
        "spec": spec,
    }


def apply(apiserver: ApiServer, document: dict[str, Any], *options: str) -> Answer:
    return apiserver.apply(document, *options)


def stored(apiserver: ApiServer, namespace: str) -> dict[str, Any] | None:
    out = apiserver.kubectl(
        "get", "kvt", "demo", "-n", namespace, "-o", "json", "--ignore-not-found"
    ).out
    return json.loads(out) if out else None


@pytest.mark.parametrize(
    "command", [["create"], ["apply"], ["apply", "--server-side"], ["apply", "--dry-run=server"]]
)
def test_a_refusal_arrives_as_kubectl_prints_it_and_nothing_is_stored(
    apiserver: ApiServer, namespace: str, live: Webhook, command: list[str]
) -> None:
    document = json.dumps(tier(namespace, CHUNKS))
    answer = apiserver.kubectl(*command, "-f", "-", stdin=document)
    assert answer.code != 0
    assert f"{DENIED}{REFUSED}" in answer.message
    assert "64Mi leaves room for" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert stored(apiserver, namespace) is None


def test_a_name_that_the_server_makes_is_judged_too(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    document = tier(namespace, generateName="made-")
    del document["metadata"]["name"]
    created = apiserver.kubectl("create", "-f", "-", stdin=json.dumps(document))
    assert created.code == 0, created.message
    document["spec"]["pool"]["chunkTokens"] = 16384
    assert DENIED in apiserver.kubectl("create", "-f", "-", stdin=json.dumps(document)).message


def test_a_warning_arrives_with_its_figures_and_the_tier_is_stored(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    answer = apply(apiserver, tier(namespace, SLOW))
    assert answer.code == 0, answer.message
    assert "Warning: By the declared figures NeverPays: " in answer.message
    assert "The zone link gives 0.001 Gb/s, break-even is 0.041 Gb/s." in answer.message
    assert stored(apiserver, namespace) is not None
    # Nothing new in the spec: nothing to say.
    assert not apply(apiserver, tier(namespace, SLOW)).err
    labelled = apiserver.kubectl("label", "kvt", "demo", "a=b", "-n", namespace)
    assert (labelled.code, labelled.err) == (0, "")


def test_what_no_link_changes_is_refused_with_block_and_a_warning_without(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    physics = "NoPromptLongEnough: T0 of 2 s takes prompts of 10,001 tokens to make up for"
    blocked = apply(apiserver, tier(namespace, HOPELESS | {"placement": {"onReject": "Block"}}))
    assert blocked.code != 0
    assert f"{DENIED}spec.placement.onReject: Block, and {physics}" in blocked.message
    assert stored(apiserver, namespace) is None
    warned = apply(apiserver, tier(namespace, HOPELESS))
    assert warned.code == 0
    assert f"Warning: {physics}" in warned.message


def test_an_edit_is_judged_and_a_good_tier_is_taken_without_a_word(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    taken = apply(apiserver, tier(namespace))
    assert (taken.code, taken.err) == (0, "")
    edited = apply(apiserver, tier(namespace, CHUNKS))
    assert edited.code != 0
    assert f"{DENIED}{REFUSED}" in edited.message
    patch = '{"spec": {"pool": {"chunkTokens": 16384}}}'
    patched = apiserver.kubectl(
        "patch", "kvt", "demo", "-n", namespace, "--type=merge", "-p", patch
    )
    assert f"{DENIED}{REFUSED}" in patched.message
    found = stored(apiserver, namespace)
    assert found is not None
    assert found["spec"]["pool"]["chunkTokens"] == 256


def test_a_tier_that_was_stored_bad_takes_metadata_status_finalizers_and_deletion(
    apiserver: ApiServer, namespace: str, process: Webhook, ca: Ca, tmp_path: Path
) -> None:
    before = tier(namespace, CHUNKS, finalizers=["example.com/wait"])
    assert apply(apiserver, before).code == 0
    with asked(apiserver, namespace, url=process.url, ca=ca, home=tmp_path):
        probe = tier(namespace, CHUNKS, generateName="probe-")
        del probe["metadata"]["name"]
        until(
            lambda: (
                apiserver.kubectl(
                    "create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe)
                ).code
                != 0
            )
        )
        where = ("kvt", "demo", "-n", namespace)
        for done in (
            apiserver.kubectl("annotate", *where, "a=b"),
            apiserver.kubectl(
                *("patch", *where, "--type=merge", "--subresource=status"),
                *("-p", '{"status": {"ranks": "0/2"}}'),
            ),
            apiserver.kubectl("delete", *where, "--wait=false"),
            apiserver.kubectl(
                "patch", *where, "--type=merge", "-p", '{"metadata": {"finalizers": null}}'
            ),
        ):
            assert (done.code, done.err) == (0, "")
        until(lambda: stored(apiserver, namespace) is None)


def test_a_stored_bad_tier_can_be_paused_with_a_warning_and_mended(
    apiserver: ApiServer, namespace: str, process: Webhook, ca: Ca, tmp_path: Path
) -> None:
    assert apply(apiserver, tier(namespace, CHUNKS)).code == 0
    with asked(apiserver, namespace, url=process.url, ca=ca, home=tmp_path):
        pause = ("patch", "kvt", "demo", "-n", namespace, "--type=merge", "-p")
        answers: list[Answer] = []

        def paused_with_a_warning() -> bool:
            on = json.dumps({"spec": {"paused": len(answers) % 2 == 0}})
            answers.append(apiserver.kubectl(*pause, on))
            assert answers[-1].code == 0, answers[-1].message
            return f"Warning: As before, {REFUSED}" in answers[-1].message

        until(paused_with_a_warning)
        mended = apply(apiserver, tier(namespace))
        assert mended.code == 0, mended.message


def test_what_the_webhook_lets_through_is_counted_as_kubectl_saw_it(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    def count(result: str) -> float:
        return live.metric(f'kvtier_webhook_reviews_total{{result="{result}"}}')

    before = {result: count(result) for result in ("allowed", "warned", "refused")}
    apply(apiserver, tier(namespace))
    apply(apiserver, tier(namespace, SLOW))
    apply(apiserver, tier(namespace, CHUNKS))
    after = {result: count(result) - before[result] for result in before}
    assert after == {"allowed": 1, "warned": 1, "refused": 1}
    assert count("bad") == count("failed") == 0


def test_other_namespaces_are_not_asked_about(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    answer = apply(apiserver, tier("default", CHUNKS), "--dry-run=server")
    assert answer.code == 0, answer.message


def test_a_webhook_that_is_down_lets_everything_through(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    assert live.stop() == 0
    answer = apply(apiserver, tier(namespace, CHUNKS))
    assert (answer.code, answer.err) == (0, "")


def test_a_wrong_path_is_an_error_that_the_api_server_tells_and_never_a_yes(
    apiserver: ApiServer, namespace: str, process: Webhook, ca: Ca, tmp_path: Path
) -> None:
    url = process.url.replace("/validate", "/wrong")
    with asked(apiserver, namespace, url=url, ca=ca, home=tmp_path):
        (name,) = (
            each["metadata"]["name"]
            for each in json.loads(
                apiserver.kubectl("get", "validatingwebhookconfiguration", "-o", "json").out
            )["items"]
        )
        fail = '[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]'
        patched = apiserver.kubectl(
            "patch", "validatingwebhookconfiguration", name, "--type=json", "-p", fail
        )
        assert patched.code == 0, patched.message
        told: list[str] = []

        def refused() -> bool:
            told.append(apply(apiserver, tier(namespace), "--dry-run=server").message)
            return "failed calling webhook" in told[-1]

        until(refused)
        assert "404" in told[-1] or "could not find the requested resource" in told[-1]


def test_a_webhook_that_hangs_holds_an_apply_up_for_no_longer_than_its_timeout(
    apiserver: ApiServer, namespace: str, ca: Ca, tmp_path: Path
) -> None:
    """It takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []
        called = threading.Event()

        def accept() -> None:
            while True:
                try:
                    held.append(silent.accept()[0])
                except OSError:
                    return
                called.set()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            url = f"https://localhost:{silent.getsockname()[1]}/validate"
            with asked(apiserver, namespace, url=url, ca=ca, home=tmp_path):
                deadline = time.monotonic() + 60
                while not called.is_set():
                    assert time.monotonic() < deadline
                    begin = time.monotonic()
                    answer = apply(apiserver, tier(namespace, CHUNKS), "--dry-run=server")
                    spent = time.monotonic() - begin
        finally:
            silent.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()
    assert (answer.code, answer.err) == (0, "")
    assert HOLD_SECONDS <= spent < HOLD_SECONDS + 20, spent


def test_a_real_api_server_takes_what_the_chart_renders_also_where_pods_must_be_restricted(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    assert apiserver.kubectl("label", "namespace", namespace, enforce).code == 0
    objects = [
        each
        for each in rendered("networkPolicy.enabled=true", namespace=namespace, home=tmp_path)
        if each["metadata"]["name"].startswith("kvtier-webhook")
        and not each["apiVersion"].startswith("cert-manager.io/")
    ]
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"] | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = pod["metadata"] | {"name": "webhook", "namespace": namespace}
    assert len(objects) == 6
    for document in (*objects, pod):
        taken = apiserver.kubectl(
            "create", "--dry-run=server", "-f", "-", stdin=json.dumps(document)
        )
        assert (taken.code, taken.err) == (0, ""), document["kind"]


def test_cert_managers_own_schemas_take_the_charts_issuers_and_certificates(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    objects = [
        each
        for each in rendered(namespace=namespace, home=tmp_path)
        if each["apiVersion"].startswith("cert-manager.io/")
    ]
    assert sorted(each["kind"] for each in objects) == ["Certificate"] * 2 + ["Issuer"] * 2
    names = [f"crd/{kind}.cert-manager.io" for kind in KINDS]
    for crd in cert_manager_crds():
        made = apiserver.kubectl("create", "-f", "-", stdin=crd)
        assert made.code == 0, made.message
    try:
        waited = apiserver.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
        assert waited.code == 0, waited.message
        for document in objects:
            taken = apiserver.kubectl(
                "create", "--dry-run=server", "-f", "-", stdin=json.dumps(document)
            )
            assert (taken.code, taken.err) == (0, ""), document
            # What the schemas are good for.
            wrong = copy.deepcopy(document)
            wrong["spec"]["secretname"] = "x"
            refused = apiserver.kubectl(
                "create", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong)
            )
            assert 'unknown field "spec.secretname"' in refused.message
    finally:
        assert apiserver.kubectl("delete", *names).code == 0
