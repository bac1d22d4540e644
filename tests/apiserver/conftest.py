"""The API server that every test of this folder shares. Never skipped: it starts or they fail."""

from collections.abc import Iterator

import pytest
from apiserver_process import ApiServer, running
from dry_run import DryRun
from gateway_kinds import teach

from kvtier.api.base import GROUP, PLURAL
from kvtier.api.crd import crd_yaml
from programs import CannotStart


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """A real API server that knows KVCacheTier."""
    try:
        with running() as server:
            applied = server.kubectl("create", "-f", "-", stdin=crd_yaml())
            assert applied.code == 0, applied.message
            established = server.kubectl(
                "wait", "--for=condition=Established", "--timeout=30s", f"crd/{PLURAL}.{GROUP}"
            )
            assert established.code == 0, established.message
            yield server
    except CannotStart as reason:
        pytest.fail(str(reason), pytrace=False)


@pytest.fixture(scope="session")
def gateway_apiserver(apiserver: ApiServer) -> ApiServer:
    """The same, which knows the kinds of Envoy Gateway too.

    They stay: to delete a CRD takes a busy API server minutes, and no test minds them.
    """
    try:
        teach(apiserver)
    except CannotStart as reason:
        pytest.fail(str(reason), pytrace=False)
    return apiserver


@pytest.fixture
def dry_run(apiserver: ApiServer) -> Iterator[DryRun]:
    """Each test's own: a connection that rests is closed by the server."""
    found = DryRun(apiserver)
    yield found
    found.close()
