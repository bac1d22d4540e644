"""One helm binary and what it renders, for the chart's tests."""

import copy
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/kvtier"
NAMESPACE = "kvtier-system"
# A helm built from its module, not from a release, takes the cluster for a very old one.
CLUSTER = ("--namespace", NAMESPACE, "--kube-version", "1.37.2")

Objects = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Helm:
    """One helm binary. The user's environment and configuration are kept away from it."""

    version: int
    binary: str
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [self.binary, *arguments], capture_output=True, text=True, timeout=60, env=environment
        )

    def template(self, *arguments: str, release: str = "kvtier", chart: Path = CHART) -> str:
        """The rendered manifests; a failure to render fails the test."""
        return _template(self, arguments, release=release, chart=chart)

    def objects(self, *arguments: str, release: str = "kvtier") -> Objects:
        """(kind, name) -> object. A RoleBinding's name is preceded by its namespace."""
        return copy.deepcopy(_objects(self.template(*arguments, release=release)))

    def refusal(self, *arguments: str) -> str:
        """What a person reads when values are refused; rendering them fails the test."""
        run = self.run("template", "kvtier", str(CHART), *CLUSTER, *arguments)
        assert run.returncode != 0, "these values were accepted"
        return run.stderr


@cache
def _objects(rendered: str) -> Objects:
    objects: Objects = {}
    for document in yaml.load_all(rendered, yaml.CSafeLoader):
        metadata = document["metadata"]
        name = metadata["name"]
        if document["kind"] == "RoleBinding":
            name = f"{metadata['namespace']}/{name}"
        assert (document["kind"], name) not in objects
        objects[document["kind"], name] = document
    return objects


@cache
def _template(helm: Helm, arguments: tuple[str, ...], *, release: str, chart: Path) -> str:
    run = helm.run("template", release, str(chart), *CLUSTER, *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout
