"""The real helm binaries, 4 and 3, from the local cluster's cache."""

import sys
from pathlib import Path

import pytest
from chart_helm import ROOT, Helm


@pytest.fixture(scope="session")
def helm_binaries() -> dict[int, str]:
    """Version -> path."""
    sys.path.insert(0, str(ROOT / "deploy" / "local"))
    try:
        from localcluster import build
    finally:
        sys.path.pop(0)
    built = build.binaries()
    binaries = {4: str(built["helm"]), 3: str(built["helm3"])}
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
