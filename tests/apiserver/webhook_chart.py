"""What the chart renders for the webhook, and the schemas of cert-manager."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
from apiserver_process import CHECKOUT, CannotStart, local_binaries

CHART = CHECKOUT / "charts/kvtier"
CERT_MANAGER = "github.com/cert-manager/cert-manager@v1.21.2"
CERT_MANAGER_SUM = "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="


def rendered(*values: str, namespace: str, home: Path) -> list[dict[str, Any]]:
    """The chart's objects with the webhook on; ``values`` as for ``--set``."""
    settings = [f"--set={value}" for value in ("webhook.enabled=true", *values)]
    done = subprocess.run(
        [
            *(local_binaries()["helm"], "template", "kvtier", CHART, f"--namespace={namespace}"),
            *("--kube-version=1.37.2", *settings),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def cert_manager_crds() -> list[str]:
    """The CRDs of Issuer and Certificate, from cert-manager's own Go module, checked by its sum."""
    done = subprocess.run(
        ["go", "mod", "download", "-json", CERT_MANAGER],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if done.returncode:
        raise CannotStart(f"`go mod download {CERT_MANAGER}` failed: {done.stdout}{done.stderr}")
    module = json.loads(done.stdout)
    assert module["Sum"] == CERT_MANAGER_SUM
    crds = Path(module["Dir"]) / "deploy/crds"
    return [(crds / f"cert-manager.io_{kind}.yaml").read_text() for kind in KINDS]


KINDS = ("issuers", "certificates")
