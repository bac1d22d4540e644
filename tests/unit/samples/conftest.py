"""The helm binaries of the chart's tests, importable by name, and the local cluster's kubectl."""

import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(CHECKOUT / "tests/unit/chart"), str(CHECKOUT / "tests/apiserver")]

from chart_helm import Helm  # noqa: E402


@pytest.fixture(scope="session")
def kubectl() -> str:
    from apiserver_process import kubectl_path

    path = kubectl_path()
    assert path.exists(), f"{path} is missing: run `deploy/local/cluster build`"
    return str(path)


@pytest.fixture(params=[4, 3], ids=["helm4", "helm3"], scope="session")
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    from programs import local_binaries

    version: int = request.param
    binary = local_binaries()["helm" if version == 4 else "helm3"]
    assert binary.exists(), f"{binary} is missing: run `deploy/local/cluster build`"
    home = tmp_path_factory.mktemp(f"helm{version}")
    return Helm(version=version, binary=str(binary), home=home)
