"""A real API server asks about real pods, configured and with the rights that the chart gives.

The last test stops the webhook.
"""

import base64
import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from apiserver_process import Answer, ApiServer
from controller_process import SPEC
from webhook_chart import rendered

from certificates import Ca
from kvtier.api import reasons
from kvtier.api.load import parse_tier
from kvtier.generation.identity import generation_id
from webhook_process import Webhook, until, webhook, write

ACCOUNT = "kvtier-webhook"
COMMAND = ["vllm", "serve", "tiny", "--revision=r1", "--kv-cache-dtype=bfloat16", "-tp", "2"]


def tier(namespace: str) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(SPEC)
    spec["pool"] |= {"engine": {"connector": "LMCacheInProcess"}, "striping": "Shard"}
    return {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": spec,
    }


def pod(namespace: str, *, command: list[str] = COMMAND, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "labels": {"kvtier.dev/tier": "demo"},
            "annotations": {"kvtier.dev/inject": "true"},
            **metadata,
        },
        "spec": {
            "initContainers": [{"name": "first", "image": "busybox:1", "command": ["true"]}],
            "containers": [
                {"name": "proxy", "image": "envoy:1"},
                {
                    "name": "vllm",
                    "image": "vllm:1",
                    "command": command,
                    "env": [{"name": "PYTHONPATH", "value": "/mine"}],
                },
            ],
        },
    }


def created(apiserver: ApiServer, document: dict[str, Any], *options: str) -> Answer:
    return apiserver.kubectl("create", *options, "-f", "-", stdin=json.dumps(document))


def get(apiserver: ApiServer, *what: str) -> Any:
    found = apiserver.kubectl("get", *what, "-o", "json")
    assert found.code == 0, found.message
    return json.loads(found.out)


def pods(apiserver: ApiServer, namespace: str, prefix: str) -> list[Any]:
    """Those whose name begins so."""
    found = get(apiserver, "pods", "-n", namespace)["items"]
    return [each for each in found if each["metadata"]["name"].startswith(prefix)]


@pytest.fixture(scope="module")
def namespace(apiserver: ApiServer) -> Iterator[str]:
    """One with a tier whose generation is Live, as the controller would say."""
    name = f"inject-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", name).code == 0
    document = tier(name)
    assert created(apiserver, document).code == 0
    row = {"id": generation_id(parse_tier(document).spec), "state": "Live"}
    status = json.dumps({"status": {"observedGeneration": 1, "generations": [row]}})
    patch = ("patch", "kvt", "demo", "-n", name, "--subresource=status", "--type=merge")
    assert apiserver.kubectl(*patch, "-p", status).code == 0
    yield name
    apiserver.kubectl("delete", "pods", "--all", "-n", name, "--force", "--grace-period=0")
    assert apiserver.kubectl("delete", "kvt", "--all", "-n", name).code == 0


@pytest.fixture(scope="module")
def live(
    apiserver: ApiServer, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    """A webhook with the chart's rights that the API server is known to ask.

    Only the address is not the chart's: nothing routes Services here.
    """
    home = tmp_path_factory.mktemp("injection")
    ca = Ca("webhook")
    write(home, ca.issue("localhost"))
    objects = rendered(
        "webhook.injection.enabled=true",
        f"watchNamespaces={{{namespace}}}",
        # As the test of the other webhook does: a loaded machine.
        "webhook.timeoutSeconds=20",
        namespace=namespace,
        home=home,
    )
    mine = [
        each
        for each in objects
        if each["metadata"]["name"] == ACCOUNT
        and each["kind"] in ("ServiceAccount", "ClusterRole", "RoleBinding")
    ]
    assert len(mine) == 3
    (asking,) = (each for each in objects if each["kind"] == "MutatingWebhookConfiguration")
    assert asking["webhooks"][0]["clientConfig"]["service"]["path"] == "/inject"
    for document in mine:
        assert created(apiserver, document).code == 0
    token = apiserver.kubectl("create", "token", ACCOUNT, "-n", namespace)
    assert token.code == 0, token.message
    config = yaml.safe_load(apiserver.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.out.strip()}
    (home / "kubeconfig").write_text(yaml.safe_dump(config))
    with webhook(home, "--inject=true", kubeconfig=home / "kubeconfig") as process:
        until(lambda: process.answers("/readyz") == 200)
        bundle = base64.b64encode(ca.pem.encode()).decode()
        url = process.url.replace("/validate", "/inject")
        asking["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": bundle}
        assert created(apiserver, asking).code == 0
        try:
            probe = pod(namespace, generateName="probe-")
            until(
                lambda: "/kvtier" in created(apiserver, probe, "--dry-run=server", "-o", "json").out
            )
            yield process
        finally:
            apiserver.kubectl("delete", "mutatingwebhookconfiguration", ACCOUNT)
            apiserver.kubectl("delete", "clusterrole", ACCOUNT)
        assert "Traceback" not in process.log.read_text()


def test_a_pod_is_stored_with_all_that_its_engine_needs(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    answer = created(apiserver, pod(namespace, generateName="llama-"))
    assert (answer.code, answer.err) == (0, "")
    (found,) = pods(apiserver, namespace, "llama-")
    first, (proxy, engine) = found["spec"]["initContainers"], found["spec"]["containers"]
    secret = f"demo-engine-{generation_id(parse_tier(tier(namespace)).spec)}"
    (volume,) = (each for each in found["spec"]["volumes"] if each["name"] == "kvtier")
    assert volume["secret"]["secretName"] == secret
    assert engine["volumeMounts"] == [{"name": "kvtier", "mountPath": "/kvtier", "readOnly": True}]
    flag, config = engine["args"]
    assert flag == "--kv-transfer-config"
    assert json.loads(config)["kv_connector"] == "LMCacheConnectorV1"
    variables = {each["name"]: each["value"] for each in engine["env"]}
    assert variables["PYTHONPATH"] == "/kvtier/kvtier_lmcache.zip:/mine"
    assert variables["PYTHONHASHSEED"] == "0"
    assert engine["command"] == COMMAND
    for other in (*first, proxy):
        assert not {"env", "volumeMounts", "args"} & other.keys()
    # The same again, as a tool that copies pods would send it.
    copied = {**found, "metadata": pod(namespace, generateName="copy-")["metadata"]}
    assert created(apiserver, copied).code == 0
    (copied,) = pods(apiserver, namespace, "copy-")
    assert copied["spec"] == found["spec"]


def test_a_pod_that_is_left_alone_is_stored_as_it_is_with_a_warning_and_an_event(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    command = [word for word in COMMAND if word != "--revision=r1"]
    moving = pod(namespace, command=command, generateName="moving-")
    events = ("events", "-n", namespace)
    tried = created(apiserver, moving, "--dry-run=server")
    assert "Warning: kvtier left this pod alone" in tried.err
    answer = created(apiserver, moving)
    assert answer.code == 0
    assert "revision of what it runs cannot be told" in answer.message
    assert created(apiserver, moving).code == 0
    (one, _) = pods(apiserver, namespace, "moving-")
    assert "args" not in one["spec"]["containers"][1]
    assert not any(each["name"] == "kvtier" for each in one["spec"].get("volumes", ()))
    until(lambda: bool(get(apiserver, *events)["items"]))
    (event,) = get(apiserver, *events)["items"]
    assert event["reason"] == reasons.POD_NOT_INJECTED
    assert event["involvedObject"]["name"] == "demo"
    assert event["message"].startswith("Pod moving uses no tier: ")
    assert live.metric('kvtier_webhook_pods_total{result="leftAlone"}') == 3


def test_only_labelled_pods_are_asked_about(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    def asked() -> float:
        return live.metric("kvtier_webhook_review_duration_seconds_count")

    before = asked()
    assert created(apiserver, pod(namespace, name="other", labels={"a": "b"})).code == 0
    assert created(apiserver, pod("default", name="other"), "--dry-run=server").code == 0
    assert asked() == before
    assert created(apiserver, pod(namespace, name="asked", annotations={})).code == 0
    assert asked() == before + 1


def test_its_token_reads_no_secret_and_writes_no_tier(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    account = f"--as=system:serviceaccount:{namespace}:{ACCOUNT}"
    for verb, resource, may in (
        ("get", "kvcachetiers.kvtier.dev", "yes"),
        ("create", "events", "yes"),
        ("list", "kvcachetiers.kvtier.dev", "no"),
        ("patch", "kvcachetiers.kvtier.dev", "no"),
        ("get", "secrets", "no"),
        ("get", "pods", "no"),
        ("get", "configmaps", "no"),
        ("patch", "events", "no"),
    ):
        found = apiserver.kubectl("auth", "can-i", verb, resource, "-n", namespace, account)
        assert found.out.strip() == may, (verb, resource)
    elsewhere = ("auth", "can-i", "get", "kvcachetiers.kvtier.dev", "-n", "default", account)
    assert apiserver.kubectl(*elsewhere).out.strip() == "no"


def test_a_webhook_that_is_down_lets_every_pod_through(
    apiserver: ApiServer, namespace: str, live: Webhook
) -> None:
    assert live.stop() == 0
    answer = created(apiserver, pod(namespace, name="alone"))
    assert (answer.code, answer.err) == (0, "")
    found = get(apiserver, "pod", "alone", "-n", namespace)
    assert "args" not in found["spec"]["containers"][1]
