"""The real helm binaries, 4 and 3, from the local cluster's cache."""

import shlex
import subprocess
from pathlib import Path

import pytest
from chart_helm import ROOT, Helm


@pytest.fixture(scope="session")
def helm_binaries() -> dict[int, str]:
    """Version -> path, from `deploy/local/cluster env`."""
    run = subprocess.run(
        [str(ROOT / "deploy/local/cluster"), "env"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    exports = dict(
        word.split("=", 1)
        for line in run.stdout.splitlines()
        for word in shlex.split(line.removeprefix("export "))
        if "=" in word
    )
    binaries = {4: exports["HELM"], 3: exports["HELM3"]}
    for binary in binaries.values():
        assert Path(binary).exists(), f"{binary} is missing: run `deploy/local/cluster build`"
    return binaries


@pytest.fixture(params=[4, 3], ids=["helm4", "helm3"], scope="session")
def helm(
    request: pytest.FixtureRequest,
    helm_binaries: dict[int, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Helm:
    version: int = request.param
    home = tmp_path_factory.mktemp(f"helm{version}")
    return Helm(version=version, binary=helm_binaries[version], home=home)
