"""The webhook by the chart, with a certificate of one's own: what kubectl prints, and what the pods
are, serve and reach. In the order of a release's life: the last two stop and uninstall it.
"""

import http.client
import json
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from certificates import Ca, secret
from kvtier.api import reasons
from livecluster.api import Object
from livecluster.callers import PORT, Caller, connect
from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.installation import NAMESPACE, Installation
from livecluster.tier import Tier, manifest
from livecluster.waiting import eventually

NAME = "kvtier-webhook"
HOST = f"{NAME}.{NAMESPACE}.svc"
SECRET = "webhook-tls"
DENIED = 'admission webhook "kvcachetiers.kvtier.dev" denied the request: '
# What no rule of the schema can say: a rank for less than 16 chunks.
CHUNKS = {"pool": {"chunkTokens": 16384}, "store": {"memoryPerRank": "64Mi"}}
TOO_SMALL = "spec.store.memoryPerRank: 64Mi leaves room for "
SLOW = {"placement": {"links": [{"domain": "zone", "bitsPerSecond": "1M", "roundTrip": "100us"}]}}
HOPELESS = {
    "pool": {"hitLatency": "1s", "hitEngineTime": "1s"},
    "workload": {"hitTokens": [{"quantile": "1", "tokens": 1000}]},
}
BLOCK = {"placement": {"onReject": "Block"}}
PHYSICS = f"{reasons.NO_PROMPT_LONG_ENOUGH}: T0 of 2 s takes prompts of "
# As the API server counts, on a busy machine. An absent webhook refuses connections at once.
TIMEOUT_SECONDS = 15
ANSWERS_SECONDS = 30.0
RENEWED_SECONDS = 60.0
"""The kubelet looks at once, since its pod has changed, and the webhook every 5 s."""
INSIDE = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/1/status") if ":" in line)
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapBnd"], 16),
    "privileges": int(status["NoNewPrivs"]),
    "seccomp": int(status["Seccomp"]),
    "token": os.path.exists("/var/run/secrets"),
    "writable": os.access("/", os.W_OK),
}))
"""
OUTSIDE = {"uid": 65532, "capabilities": 0, "privileges": 1, "seccomp": 2}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a kubectl command; ``said`` is what it wrote to a person, not its output."""

    code: int
    said: str


@dataclass(frozen=True, slots=True)
class Webhook:
    kvtier: Installation
    ca: Ca

    @property
    def cluster(self) -> LiveCluster:
        return self.kvtier.cluster

    def put(self, *, common_name: str) -> None:
        """Make the Secret, or renew it."""
        pair = self.ca.issue(HOST, common_name=common_name)
        document = secret(SECRET, pair, ca=self.ca.pem, namespace=NAMESPACE)
        self.cluster.apply(document)
        self.cluster.leaks.needles.learn([document])

    def wait_asked(self) -> None:
        """kube-proxy passes on a Service's address a second after the pod behind it is ready."""
        bad = manifest(name="asked", namespace="default", spec=CHUNKS)
        eventually(
            lambda: DENIED in self.apply(bad, "--dry-run=server").said,
            seconds=ANSWERS_SECONDS,
            what="the API server asks the webhook",
        )

    def apply(self, document: Mapping[str, Any], *options: str) -> Answer:
        """``kubectl apply``; a refusal is an answer too."""
        done = subprocess.run(
            [self.cluster.facts["tools"]["kubectl"], "apply", "-f", "-", *options],
            input=json.dumps(document),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.cluster.environment,
        )
        return Answer(done.returncode, done.stderr)

    def pods(self) -> list[Object]:
        selector = "app.kubernetes.io/component=webhook"
        return self.cluster.api.list("pods", NAMESPACE, selector=selector)

    def connection(self, pod: Object) -> http.client.HTTPSConnection:
        """To one pod by its address, verified as the API server does."""
        context = ssl.create_default_context(cadata=self.ca.pem)
        context.check_hostname = False
        return http.client.HTTPSConnection(
            pod["status"]["podIP"], 8443, context=context, timeout=20
        )

    def served(self, pod: Object) -> str:
        """Common name of the certificate that a new connection to this pod gets."""
        connection = self.connection(pod)
        connection.connect()
        peer = connection.sock.getpeercert()  # type: ignore[attr-defined]
        connection.close()
        return str(peer["subject"][0][0][1])

    def skipped(self) -> float:
        """How often the API server has gone on without an answer, by its own count."""
        name = 'apiserver_admission_webhook_fail_open_count{name="kvcachetiers.kvtier.dev"'
        lines = self.cluster.kubectl("get", "--raw", "/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def metric(self, name: str) -> float:
        """Sum over the pods."""
        total = 0.0
        for pod in self.pods():
            url = f"http://{pod['status']['podIP']}:8080/metrics"
            with urllib.request.urlopen(url, timeout=10) as reply:
                text = reply.read().decode()
            (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, flags=re.MULTILINE)
            total += float(found)
        return total


@pytest.fixture(scope="module", autouse=True)
def webhook(
    live: LiveCluster, kvtier: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    ca = Ca("webhook")
    bundle = tmp_path_factory.mktemp("webhook") / "ca.crt"
    bundle.write_text(ca.pem)
    found = Webhook(kvtier=kvtier, ca=ca)
    found.put(common_name="first")
    kvtier.install(
        "--set=webhook.enabled=true,webhook.tls.certManager=false,networkPolicy.enabled=true",
        f"--set=webhook.tls.secretName={SECRET},webhook.timeoutSeconds={TIMEOUT_SECONDS}",
        f"--set-file=webhook.tls.caBundle={bundle}",
    )
    found.wait_asked()
    yield found
    kvtier.install()
    live.kubectl("delete", "secret", SECRET, "-n", NAMESPACE)


@pytest.fixture
def tier(module_tiers: NewTier, request: pytest.FixtureRequest) -> Tier:
    label = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))
    return module_tiers(label[:30].strip("-"))


def document(tier: Tier, *specs: Mapping[str, Any]) -> Object:
    """The small tier with ``specs`` merged into its spec, by part."""
    parts: dict[str, Any] = {}
    for spec in specs:
        for part, fields in spec.items():
            parts[part] = parts.get(part, {}) | fields
    return manifest(name=tier.name, namespace=tier.namespace, spec=parts)


def test_what_no_link_changes_is_refused_with_its_figures_under_block_and_a_warning_under_warn(
    tier: Tier, webhook: Webhook
) -> None:
    refused = 'kvtier_webhook_reviews_total{result="refused"}'
    before = webhook.metric(refused)
    blocked = webhook.apply(document(tier, HOPELESS, BLOCK))
    assert blocked.code == 1
    assert f"{DENIED}spec.placement.onReject: Block, and {PHYSICS}" in blocked.said
    assert webhook.metric(refused) == before + 1
    assert tier.find() is None
    warned = webhook.apply(document(tier, HOPELESS))
    assert warned.code == 0
    assert f"Warning: {PHYSICS}" in warned.said
    # What has ranks keeps them, and is told the same.
    tier.wait("StoreReady", "True")
    edited = webhook.apply(document(tier, HOPELESS, BLOCK))
    assert edited.code == 0
    assert f"Warning: {PHYSICS}" in edited.said


def test_what_is_only_questionable_is_stored_with_a_warning_and_what_is_well_without_a_word(
    tier: Tier, webhook: Webhook
) -> None:
    slow = webhook.apply(document(tier, SLOW))
    assert slow.code == 0
    assert slow.said.startswith("Warning: By the declared figures NeverPays: ")
    assert "The zone link gives 0.001 Gb/s, break-even is " in slow.said
    assert webhook.apply(document(tier)) == Answer(0, "")
    denied = webhook.apply(document(tier, CHUNKS))
    assert denied.code == 1
    assert f"{DENIED}{TOO_SMALL}" in denied.said
    assert tier.body()["spec"]["pool"]["chunkTokens"] == 256


def test_its_pods_have_no_rights_no_token_and_nothing_to_write_to(webhook: Webhook) -> None:
    live = webhook.cluster
    assert {pod["spec"]["serviceAccountName"] for pod in webhook.pods()} == {NAME}
    who = f"system:serviceaccount:{NAMESPACE}"
    rights = [
        live.kubectl("auth", "can-i", "--list", f"--as={who}:{name}", "-n", NAMESPACE)
        for name in (NAME, "nobody-made-this-one")
    ]
    assert rights[0] == rights[1]
    (name, *_) = (pod["metadata"]["name"] for pod in webhook.pods())
    found = json.loads(live.kubectl("exec", "-n", NAMESPACE, name, "--", "python3", "-c", INSIDE))
    assert found == OUTSIDE | {"token": False, "writable": False}


def test_no_path_but_its_own_is_answered(webhook: Webhook) -> None:
    for method, path, status in (
        ("POST", "/", 404),
        ("POST", "/mutate", 404),
        ("GET", "/metrics", 404),
        ("GET", "/validate", 405),
    ):
        connection = webhook.connection(webhook.pods()[0])
        connection.request(method, path, body=b"{}")
        assert connection.getresponse().status == status, path
        connection.close()


def test_a_renewed_certificate_is_served_by_the_same_containers(webhook: Webhook) -> None:
    def containers() -> list[str]:
        return sorted(
            each["containerID"]
            for pod in webhook.pods()
            for each in pod["status"]["containerStatuses"]
        )

    before = containers()
    assert {webhook.served(pod) for pod in webhook.pods()} == {"first"}
    webhook.put(common_name="second")
    for pod in webhook.pods():
        name = pod["metadata"]["name"]
        webhook.cluster.kubectl("annotate", "pod", name, "-n", NAMESPACE, "renewed=yes")
    eventually(
        lambda: {webhook.served(pod) for pod in webhook.pods()} == {"second"},
        seconds=RENEWED_SECONDS,
        what="every pod serves the renewed certificate",
    )
    webhook.wait_asked()
    assert containers() == before
    assert webhook.metric("kvtier_webhook_certificate_unusable") == 0


def test_a_roll_lets_nothing_through(tier: Tier, webhook: Webhook) -> None:
    bad = document(tier, CHUNKS)
    before = {pod["metadata"]["name"] for pod in webhook.pods()}
    webhook.cluster.kubectl("rollout", "restart", f"deployment/{NAME}", "-n", NAMESPACE)

    def rolled() -> bool:
        answer = webhook.apply(bad, "--dry-run=server")
        assert DENIED in answer.said, answer
        pods = webhook.pods()
        return before.isdisjoint(pod["metadata"]["name"] for pod in pods) and len(pods) == 2

    eventually(rolled, seconds=90, what="both pods are others", detail=webhook.pods)


def test_it_reaches_nobody_and_whoever_asks_reaches_it(
    webhook: Webhook, module_tiers: NewTier
) -> None:
    live = webhook.cluster
    stranger = Caller(live, module_tiers("unused").namespace, "stranger")
    stranger.start()
    pod = webhook.pods()[0]
    name, address = pod["metadata"]["name"], pod["status"]["podIP"]
    assert stranger.said(address, 8443) == "connected"
    assert connect(live, namespace=NAMESPACE, pod=name, host=address, port=8443) == "connected"
    for host, port in (
        (stranger.address, PORT),
        (str(live.facts["controlPlane"]["address"]), 6443),
    ):
        assert stranger.said(host, port) == "connected"
        assert connect(live, namespace=NAMESPACE, pod=name, host=host, port=port) != "connected"


def test_while_it_is_away_tiers_are_stored_and_the_controller_says_the_same_of_them(
    tier: Tier, webhook: Webhook
) -> None:
    said = webhook.apply(document(tier, HOPELESS, BLOCK)).said
    skipped = webhook.skipped()
    webhook.cluster.kubectl("scale", f"deployment/{NAME}", "--replicas=0", "-n", NAMESPACE)
    eventually(lambda: not webhook.pods(), seconds=60, what="no webhook pod")
    assert webhook.apply(document(tier, HOPELESS, BLOCK)) == Answer(0, "")
    # What the alert KVTierWebhookSkipped rests on.
    assert webhook.skipped() >= skipped + 1
    rejected = tier.wait("PlacementAccepted", "False", reason=reasons.NO_PROMPT_LONG_ENOUGH)
    message = rejected["message"].removesuffix(" By declared figures, not measured ones.")
    assert f"{rejected['reason']}: {message}" in said
    assert tier.pods() == {}
    assert webhook.apply(document(tier, CHUNKS)) == Answer(0, "")
    assert TOO_SMALL in str(tier.wait("SpecValid", "False")["message"])


def test_an_uninstall_leaves_nothing_of_it_and_tiers_can_be_applied(
    tier: Tier, webhook: Webhook
) -> None:
    live = webhook.cluster
    kinds = (
        *("validatingwebhookconfigurations", "deployments", "replicasets", "pods", "services"),
        *("serviceaccounts", "poddisruptionbudgets", "networkpolicies", "endpointslices"),
        *("clusterroles", "clusterrolebindings", "roles", "rolebindings"),
    )

    def left() -> list[str]:
        return [
            line
            for line in live.kubectl("get", ",".join(kinds), "-A", "-o", "name").splitlines()
            if "kvtier" in line
        ]

    assert f"validatingwebhookconfiguration.admissionregistration.k8s.io/{NAME}" in left()
    webhook.kvtier.uninstall()
    eventually(lambda: not left(), seconds=60, what="nothing of kvtier is left", detail=left)
    assert webhook.apply(document(tier, CHUNKS), "--dry-run=server") == Answer(0, "")
