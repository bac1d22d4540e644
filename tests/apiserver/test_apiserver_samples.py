"""The sample engines as a real API server takes them: every field known, nothing refused."""

import sys
from pathlib import Path

import pytest
from apiserver_process import ApiServer

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "samples"))
from engine_samples import documents, templates

ENGINES = Path(__file__).parents[2] / "deploy" / "samples" / "engines"
FILES = sorted(ENGINES.glob("*.yaml"))
NOT_KNOWN = {"Kustomization", "LeaderWorkerSet"}
KNOWN = [path for path in FILES if documents(path.read_text())[0]["kind"] not in NOT_KNOWN]
WITH_PODS = [path for path in FILES if templates(path.read_text())]
STRICT = ("--dry-run=server", "--validate=strict")
RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def test_samples_are_found() -> None:
    assert len(KNOWN) >= 5
    assert len(WITH_PODS) >= 4


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.name)
def test_a_sample_is_taken(apiserver: ApiServer, path: Path) -> None:
    taken = apiserver.apply(path.read_text(), *STRICT)
    assert taken.code == 0, taken.message


@pytest.mark.parametrize("path", WITH_PODS, ids=lambda path: path.name)
def test_the_pods_of_a_sample_are_taken(apiserver: ApiServer, path: Path) -> None:
    """Those of a LeaderWorkerSet too, whose kind this API server does not know."""
    created = apiserver.apply(RUNTIME)
    assert created.code == 0, created.message
    for number, template in enumerate(templates(path.read_text())):
        labels = template["metadata"]["labels"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"engine-{number}", "namespace": "default", "labels": labels},
            "spec": template["spec"],
        }
        taken = apiserver.apply(pod, *STRICT)
        assert taken.code == 0, taken.message


def test_what_kustomize_builds_is_taken(apiserver: ApiServer) -> None:
    taken = apiserver.kubectl("apply", "-k", str(ENGINES), *STRICT)
    assert taken.code == 0, taken.message
    assert "kvcachetier.kvtier.dev/deepseek" in taken.out
    assert "deployment.apps/deepseek" in taken.out
    assert "configmap" not in taken.out
