"""``kvtier probe`` and ``plan --live`` against a real API server; the operator is played."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apiserver_process import ApiServer
from controller_process import SPEC, apply_tier, get, wait_for

from kvtier.plan.probing import REQUESTED
from kvtier.reconcile.lease import LABEL

PROGRAM = Path(sys.executable).with_name("kvtier")
NODE = "probe-node"
OLD, NEW = "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"
MEASURED = {
    "bytesPerSecond": 3_200_000_000,
    "roundTripSeconds": 0.0002,
    "evidence": "Probed",
    "node": NODE,
    "ratio": 2.0,
}


@pytest.fixture
def namespace(apiserver: ApiServer) -> Iterator[str]:
    """With a tier that is Ready and a Ready engine on a node."""
    name = f"probe-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", name).code == 0
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "a"}},
    }
    made = apiserver.apply(node)
    assert made.code == 0, made.message
    apply_tier(apiserver, name)
    engine = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "namespace": name, "labels": {"kvtier.dev/tier": "demo"}},
        "spec": {"nodeName": NODE, "containers": [{"name": "engine", "image": "engine"}]},
    }
    made = apiserver.apply(engine)
    assert made.code == 0, made.message
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": OLD}
    patch(apiserver, name, "pod/engine", {"phase": "Running", "conditions": [ready]})
    told = {"reason": "TierReady", "message": "", "observedGeneration": 1}
    patch(
        apiserver,
        name,
        "kvt/demo",
        {
            "observedGeneration": 1,
            "conditions": [ready | told],
            "domain": "zone=a",
            "rankStates": [{"rank": rank, "ready": True, "node": NODE} for rank in range(2)],
            "measured": MEASURED | {"at": OLD},
        },
    )
    made = apiserver.apply(lease(name))
    assert made.code == 0, made.message
    yield name
    apiserver.kubectl("delete", "kvt,pod,lease", "--all", "-n", name, "--force", "--grace-period=0")


def lease(namespace: str) -> dict[str, Any]:
    """That of a controller which is at work for as long as any test takes."""
    renewed = datetime.now(UTC) + timedelta(hours=1)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kvtier", "namespace": namespace, "labels": dict([LABEL.split("=")])},
        "spec": {
            "holderIdentity": "controller",
            "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def patch(server: ApiServer, namespace: str, what: str, status: dict[str, Any]) -> None:
    text = json.dumps({"status": status})
    done = server.kubectl(
        "patch", what, "-n", namespace, "--subresource=status", "--type=merge", f"--patch={text}"
    )
    assert done.code == 0, done.message


def started(server: ApiServer, namespace: str, *flags: str) -> subprocess.Popen[str]:
    where = ("--kubeconfig", str(server.kubeconfig), "-n", namespace)
    return subprocess.Popen(
        [PROGRAM, *flags, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def asked(server: ApiServer, namespace: str) -> str | None:
    found: str | None = get(server, "kvt", "demo", "-n", namespace)["metadata"]["annotations"].get(
        REQUESTED
    )
    return found


def test_the_request_is_an_annotation_and_no_change_of_the_spec(
    apiserver: ApiServer, namespace: str
) -> None:
    probe = started(apiserver, namespace, "probe", "demo", "--no-wait", "-o", "json")
    shown, said = probe.communicate(timeout=100)
    assert probe.returncode == 0, said
    answer = apiserver.kubectl(
        "get", "kvt/demo", "-n", namespace, "-o", "json", "--show-managed-fields"
    )
    metadata = json.loads(answer.out)["metadata"]
    assert json.loads(shown)["probeRequested"] == metadata["annotations"][REQUESTED]
    assert metadata["generation"] == 1
    [entry] = [each for each in metadata["managedFields"] if each["manager"] == "kubectl-kvtier"]
    assert entry["operation"] == "Update"


def test_the_wait_ends_with_the_new_figure(apiserver: ApiServer, namespace: str) -> None:
    probe = started(apiserver, namespace, "probe", "demo")
    wait_for(lambda: asked(apiserver, namespace))
    patch(apiserver, namespace, "kvt/demo", {"measured": MEASURED | {"at": NEW, "ratio": 3.0}})
    shown, said = probe.communicate(timeout=100)
    assert probe.returncode == 0, said
    assert f"a probe from {NODE}" in shown
    assert "3 x break-even" in shown


def test_the_wait_ends_with_the_event_that_says_why_there_is_none(
    apiserver: ApiServer, namespace: str
) -> None:
    probe = started(apiserver, namespace, "probe", "demo")
    wait_for(lambda: asked(apiserver, namespace))
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "demo.1", "namespace": namespace},
        "involvedObject": {"kind": "KVCacheTier", "name": "demo", "namespace": namespace},
        "reason": "ProbeFailed",
        "message": "The probe has no figure from there.",
        "type": "Warning",
        "count": 1,
    }
    assert apiserver.apply(event).code == 0
    _, said = probe.communicate(timeout=100)
    assert probe.returncode == 1
    assert said.splitlines()[-1] == "kvtier: The probe has no figure from there."


def test_a_plan_takes_nodes_engines_and_the_measured_link_from_the_cluster(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "tier.yaml"
    tier = {"apiVersion": "kvtier.dev/v1alpha1", "kind": "KVCacheTier", "spec": SPEC}
    file.write_text(json.dumps(tier | {"metadata": {"name": "demo"}}))
    plan = started(apiserver, namespace, "plan", "-f", str(file), "--live", "-o", "json")
    shown, said = plan.communicate(timeout=100)
    assert not said
    found = json.loads(shown)
    assert found["measured"]["evidence"] == "Probed"
    assert found["measured"]["node"] == NODE
    assert found["engines"] == {"total": 1, "ready": 1}
    assert found["domain"] == "zone=a"
