"""One instance of deploy/local/cluster, brought up for a test run and taken down after it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livecluster.api import Api
from livecluster.audit import AuditLog
from livecluster.leaks import Leaks
from programs import CHECKOUT, CannotStart

SCRIPT = CHECKOUT / "deploy" / "local" / "cluster"
KVTIER = Path(sys.executable).with_name("kvtier")
REUSED = "KVTIER_TEST_CLUSTER"
"""Names an instance that is up already; it is used and left running."""
COMMAND_SECONDS = 120.0


class Failed(AssertionError):
    """A command that should have worked; the text is what it said."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A running cluster. ``facts`` is the instance's cluster.json, ``home`` a directory in which
    kubectl and helm keep what they cache."""

    facts: dict[str, Any]
    home: Path
    api: Api
    audit: AuditLog
    leaks: Leaks

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What a person would run; returns what it printed, raises Failed with what it said."""
        return self.run("kubectl", *arguments, stdin=stdin)

    def run(self, tool: str, *arguments: str, stdin: str | None = None) -> str:
        """Run one of the instance's tools, or kvtier, as the cluster's administrator."""
        program = KVTIER if tool == KVTIER.name else self.facts["tools"][tool]
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
            env=self.environment,
        )
        if done.returncode:
            raise Failed(f"{tool} {arguments[0]}: {' '.join(done.stderr.split())}")
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the caller's configuration reaches the tools."""
        return {
            "KUBECONFIG": self.facts["kubeconfig"],
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
        }

    def apply(self, document: dict[str, Any] | list[dict[str, Any]]) -> None:
        documents = document if isinstance(document, list) else [document]
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))


@contextmanager
def cluster(*, name: str, offset: int) -> Iterator[LiveCluster]:
    """Bring the instance up with all images; take it down at the end, whatever happened.

    Raises CannotStart with the reason.
    """
    reused = os.environ.get(REUSED)
    instance = ["--name", reused] if reused else ["--name", name, "--offset", str(offset)]
    try:
        # Also of a cluster that is reused: kvtier's own image may be older than the checkout.
        for command in ("up", "images"):
            _script(command, *instance)
        with tempfile.TemporaryDirectory(prefix="kvtier-test-") as directory:
            home, kept = Path(directory) / "home", Path(directory) / "kept"
            home.mkdir()
            facts = json.loads(Path(_environment(instance)["KVTIER_CLUSTER"]).read_text())
            api = Api(Path(facts["kubeconfig"]))
            yield LiveCluster(
                facts=facts,
                home=home,
                api=api,
                audit=AuditLog(Path(facts["auditLog"])),
                leaks=Leaks(facts=facts, api=api, kept=kept),
            )
            api.close()
    finally:
        if not reused:
            _script("down", *instance)


def bring_up_again(name: str) -> None:
    """Start whatever died of a running instance. Raises CannotStart with the reason."""
    _script("up", "--name", name)


def _script(*arguments: str) -> str:
    done = subprocess.run(
        [str(SCRIPT), *arguments], capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotStart(
            f"`deploy/local/cluster {' '.join(arguments)}`: {said[-1] if said else 'no reason'}"
        )
    return done.stdout


def _environment(instance: list[str]) -> dict[str, str]:
    lines = _script("env", *instance).splitlines()
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    return {name: value.strip("'") for name, _, value in pairs}
