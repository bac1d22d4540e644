"""Fixtures of both suites; their conftests import them."""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from livecluster.cluster import REUSED, CannotStart, LiveCluster, cluster
from livecluster.installation import Installation
from livecluster.tier import Tier

NewTier = Callable[[str], Tier]


def bring_up(*, name: str, offset: int) -> Iterator[LiveCluster]:
    """The body of a session's cluster fixture. Never skipped: it starts or every test fails."""
    why = ""
    try:
        with cluster(name=name, offset=offset) as running:
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
    yield lambda name: Tier(cluster=running, namespace=namespace, name=name)
    running.kubectl("delete", "kvt", "--all", "-n", namespace, "--wait=false")
    running.kubectl("delete", "namespace", namespace, "--wait=false")
