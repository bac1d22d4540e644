"""Where the demo runs: a cluster, with kubectl and helm for it."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvtier

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LOCAL_CLUSTER = CHECKOUT / "deploy/local/cluster"
LOCAL_NAME = "demo"
LOCAL_NAMESPACE = "default"
LOCAL_IMAGE = f"docker.io/kvtier/kvtier:{kvtier.__version__}"
FOREIGN_NAMESPACE = "kvtier-demo"
INTERRUPT_SECONDS = 30.0
_IMAGE = re.compile(
    r"(?P<repository>[^@]+?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]*))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class DemoError(Exception):
    """One line: what went wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """``context`` is None for the local cluster. ``namespace`` is the tier's and the pool's."""

    kubectl_path: str
    helm_path: str
    image: str
    namespace: str
    context: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Output of kubectl in the tier's namespace. Raises DemoError."""
        where = [f"--namespace={self.namespace}"]
        if self.context is not None:
            where.append(f"--context={self.context}")
        return self._run([self.kubectl_path, *where, *arguments], stdin=stdin)

    def get(self, *arguments: str) -> Any:
        """The object, or None if there is none."""
        text = self.kubectl("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else None

    def helm(self, *arguments: str) -> str:
        where = [] if self.context is None else [f"--kube-context={self.context}"]
        return self._run([self.helm_path, *arguments, *where], stdin=None)

    def typed(self, arguments: str) -> str:
        """A kubectl command as the person who runs the demo would type it."""
        where = "" if self.context is None else f" --context {shlex.quote(self.context)}"
        if self.namespace != LOCAL_NAMESPACE:
            where += f" -n {self.namespace}"
        return f"kubectl{where} {arguments}"

    def image_values(self) -> dict[str, str]:
        """The chart's values for ``image``.

        The local image has one name, whatever is in it: an annotation restarts the controller.
        """
        if self.context is None:
            return {"podAnnotations.source": _source()}
        match = _IMAGE.fullmatch(self.image)
        if match is None:
            raise DemoError(f"IMAGE={self.image}: write it as repository:tag")
        parts = {name: value for name, value in match.groupdict().items() if value}
        if not parts.keys() & {"tag", "digest"}:
            parts["tag"] = "latest"
        return {f"image.{name}": value for name, value in parts.items()}

    def _run(self, argv: list[str], *, stdin: str | None) -> str:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | self.environment,
            cwd=CHECKOUT,
            text=True,
        )
        try:
            stdout, stderr = process.communicate(stdin)
        except KeyboardInterrupt:
            # Ctrl-C reached it too. A killed helm would leave a release that nothing can upgrade.
            process.communicate(timeout=INTERRUPT_SECONDS)
            raise
        if process.returncode:
            complaint = stderr.strip().splitlines() or [f"exit code {process.returncode}"]
            verb = next((word for word in argv[1:] if not word.startswith("-")), "")
            raise DemoError(f"{Path(argv[0]).name} {verb}: {complaint[-1]}")
        return stdout


def _source() -> str:
    """What the local image is made of."""
    digest = hashlib.sha256()
    for file in sorted((CHECKOUT / "operator").rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def local(offset: int | None) -> Target:
    """The local cluster, started if it does not run; it tells its progress itself."""
    name = ["--name", LOCAL_NAME]
    where = name if offset is None else [*name, "--offset", str(offset)]
    for step in ("up", "images"):
        if subprocess.run([LOCAL_CLUSTER, step, *where], check=False).returncode:
            raise DemoError(
                f"`deploy/local/cluster {step}` failed and says why above. With another local "
                "cluster beside it: make demo OFFSET=2. With a cluster of your own: make demo "
                "CONTEXT=name IMAGE=reference"
            )
    lines = subprocess.run(
        [LOCAL_CLUSTER, "env", *name], capture_output=True, text=True, check=True
    ).stdout
    words = (word for line in lines.splitlines() for word in shlex.split(line)[1:])
    environment = dict(word.split("=", 1) for word in words)
    return Target(
        kubectl_path=environment["KUBECTL"],
        helm_path=environment["HELM"],
        image=LOCAL_IMAGE,
        namespace=LOCAL_NAMESPACE,
        environment={"KUBECONFIG": environment["KUBECONFIG"]},
    )


def existing(context: str, image: str) -> Target:
    """A cluster of the user's own, in a namespace of the demo's own."""
    paths = {name: shutil.which(name) for name in ("kubectl", "helm")}
    for name, path in paths.items():
        if path is None:
            raise DemoError(f"{name} is not on PATH: install it, or run make demo without CONTEXT")
    target = Target(
        kubectl_path=str(paths["kubectl"]),
        helm_path=str(paths["helm"]),
        image=image,
        namespace=FOREIGN_NAMESPACE,
        context=context,
    )
    target.image_values()
    target.kubectl("version", "--request-timeout=10s")
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": FOREIGN_NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    target.kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
    return target
