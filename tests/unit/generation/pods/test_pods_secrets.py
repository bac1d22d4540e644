"""Every way in which a pod can have a generation's credentials counts, and no other Secret does."""

from typing import Any

import pytest

from kvtier.generation.pods.secrets import generations_of

NAME = "llama-engine-15d60954f2b2"
FROM = {"valueFrom": {"secretKeyRef": {"name": NAME, "key": "token"}}}


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"secret": {"secretName": NAME}}]},
        {"volumes": [{"projected": {"sources": [{"secret": {"name": NAME}}]}}]},
        {"containers": [{"env": [{"name": "T", **FROM}]}]},
        {"containers": [{"envFrom": [{"secretRef": {"name": NAME}}]}]},
        {"initContainers": [{"env": [{"name": "T", **FROM}]}]},
        {"ephemeralContainers": [{"envFrom": [{"secretRef": {"name": NAME}}]}]},
    ],
    ids=str,
)
def test_a_pod_with_the_secret_is_of_the_generation(spec: dict[str, Any]) -> None:
    assert generations_of({"spec": spec}, tier="llama") == {"15d60954f2b2"}
    assert generations_of({"spec": spec}, tier="other") == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "llama-engine-15D60954F2B2",
        "llama-engine-15d6",
        f"{NAME}0",
        f"x-{NAME}",
        "llama-engine-",
        "",
    ],
)
def test_another_secret_is_of_no_generation(name: str) -> None:
    spec = {"volumes": [{"secret": {"secretName": name}}]}
    assert generations_of({"spec": spec}, tier="llama") == frozenset()


def test_a_pod_may_have_several() -> None:
    names = [NAME, "llama-engine-036081912347"]
    spec = {"volumes": [{"secret": {"secretName": name}} for name in names]}
    assert generations_of({"spec": spec}, tier="llama") == {"15d60954f2b2", "036081912347"}
