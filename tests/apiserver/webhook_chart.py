"""What the chart renders for the webhook, and the schemas of cert-manager."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from programs import CHECKOUT, go_module, local_binaries

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
    crds = go_module(CERT_MANAGER, checksum=CERT_MANAGER_SUM) / "deploy/crds"
    return [(crds / f"cert-manager.io_{kind}.yaml").read_text() for kind in KINDS]


KINDS = ("issuers", "certificates")
