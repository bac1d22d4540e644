"""Fixtures of both suites; their conftests import them."""

import json
import os
import re
import secrets
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from livecluster.api import Object
from livecluster.cluster import REUSED, Failed, LiveCluster, cluster
from livecluster.installation import Installation
from livecluster.leaks import KINDS
from livecluster.tier import Tier
from programs import CannotStart

NewTier = Callable[[str], Tier]
DESCRIBED = 4
"""Tries: Jobs and their pods come and go by themselves."""


def bring_up(*, name: str, offset: int, watched: bool = True) -> Iterator[LiveCluster]:
    """The body of a session's cluster fixture. Never skipped: it starts or every test fails.

    ``watched``: whether what vanishes is looked through for tokens, which takes some of a core.
    """
    why = ""
    try:
        with (
            cluster(name=name, offset=offset) as running,
            running.leaks.watching() if watched else nullcontext(),
        ):
            yield running
    except CannotStart as reason:
        why = str(reason)
    if why:
        pytest.fail(why, pytrace=False)


def installed(running: LiveCluster, *, values: dict[str, str]) -> Iterator[Installation]:
    """The body of a session's installation fixture: kvtier by its chart, and nothing else.

    In a cluster that is reused it stays installed.
    """
    installation = Installation(cluster=running, values=values)
    installation.install()
    yield installation
    if REUSED not in os.environ:
        installation.uninstall()


def leaked(kvtier: Installation, *artefacts: Path) -> list[str]:
    """Where a token or a private key of the session is that should not be, one line each.

    ``artefacts`` are directories in which the tests wrote. First it is shown that the search sees
    the session's tokens where they are, and that there was something to look through.
    """
    running = kvtier.cluster
    leaks = running.leaks
    for namespace in running.api.list("namespaces"):
        name = namespace["metadata"]["name"]
        leaks.keep_namespace(name, described=described(running, name))
    leaks.keep("metrics", kvtier.metrics())
    for tier in running.api.list("kvcachetiers"):
        # Its namespace may be about to go.
        with suppress(Failed):
            leaks.keep("report", reported(running, tier["metadata"]))
    secrets_there = json.dumps(running.api.list("secrets")).encode()
    assert leaks.needles.tokens, "no token was made in this session"
    assert leaks.needles.search(secrets_there), "the search does not find what is there"
    found = leaks.found(running.home, *artefacts)
    for kind in ("arguments", "described", "metrics", "log-controller", "objects-events", "report"):
        assert leaks.seen.get(kind, 0) > 100, f"nothing to look through: {kind}"
    return found


def reported(running: LiveCluster, tier: Object) -> bytes:
    """All that is in the bundle that `kvtier report` makes of a tier."""
    file = running.home / f"{tier['namespace']}-{tier['name']}.tar.gz"
    running.run("kvtier", "report", tier["name"], "-n", tier["namespace"], "-o", str(file))
    with tarfile.open(file) as archive:
        members = [archive.extractfile(member) for member in archive.getmembers()]
        return b"\n".join(member.read() for member in members if member)


def described(running: LiveCluster, namespace: str) -> str:
    """All that kubectl describes there. It lists and then gets: what goes in between fails it."""
    for _ in range(DESCRIBED):
        with suppress(Failed):
            return running.kubectl("describe", KINDS, "-n", namespace)
    return running.kubectl("describe", KINDS, "-n", namespace)


@contextmanager
def tiers(running: LiveCluster, *, label: str) -> Iterator[NewTier]:
    """Makes tiers in one namespace of their own, which refuses any pod that is not restricted.

    At the end it is deleted; nobody waits for that.
    """
    label = re.sub(r"[^a-z0-9]+", "-", label.lower())[:40].strip("-")
    namespace = f"{label}-{secrets.token_hex(2)}"
    running.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        }
    )
    try:
        yield lambda name: Tier(cluster=running, namespace=namespace, name=name)
    finally:
        running.leaks.keep_namespace(namespace, described=described(running, namespace))
        running.kubectl("delete", "kvt", "--all", "-n", namespace, "--wait=false")
        running.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture
def new_tier(
    live: LiveCluster, kvtier: Installation, request: pytest.FixtureRequest
) -> Iterator[NewTier]:
    """Makes tiers in a namespace of the test's own, where a suite has ``live`` and ``kvtier``."""
    with tiers(live, label=request.node.name.removeprefix("test_")) as new:
        yield new
