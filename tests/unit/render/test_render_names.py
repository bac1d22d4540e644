"""Every name and label of the largest tier with the longest name is within Kubernetes' limits."""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvtier.api.base import MAX_NAME_LENGTH
from kvtier.api.types import KVCacheTier
from kvtier.generation.record import new_record
from kvtier.redact import new_token
from kvtier.render.names import host
from kvtier.render.render import RenderSettings, render

RANKS = 64
NAMESPACE = "n" * 63
DNS_1123 = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
DNS_1035 = r"[a-z]([a-z0-9-]*[a-z0-9])?"
LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?"
LABEL_KEY = rf"({DNS_1123}(\.{DNS_1123})*/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
LABEL = 63
"""Most characters of a label's value and of a DNS label, so of a Service's name and a host name."""
REVISION_HASH = 10
"""Most characters that the StatefulSet controller puts behind its name and a dash: a 32-bit number
in decimal, written with other letters."""
MOST_SECRET_BYTES = 1 << 20


@pytest.fixture(scope="module", params=["Shard", "Hash"])
def objects(request: pytest.FixtureRequest, make_tier: Any) -> list[dict[str, Any]]:
    tier: KVCacheTier = make_tier(
        {
            "pool.ranks": RANKS,
            "pool.striping": request.param,
            "model.layout": {"gqa": {"layers": 8, "kvHeads": 64, "headDim": 128}},
        }
    )
    document = tier.model_dump(by_alias=True, exclude_none=True)
    document["metadata"] |= {"name": longest_name(), "namespace": NAMESPACE}
    tier = KVCacheTier.model_validate(document)
    record = new_record(tier.spec, operator_token=new_token(), engine_token=new_token())
    return render(tier, record, settings=RenderSettings())


def longest_name() -> str:
    return "t" * (MAX_NAME_LENGTH - 2) + "-9"


def of(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def labels(value: Any) -> Iterator[Mapping[str, str]]:
    """Every map of labels or label selector anywhere in an object."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key in ("labels", "matchLabels", "selector") and all(
                isinstance(each, str) for each in below.values()
            ):
                yield below
            else:
                yield from labels(below)
    elif isinstance(value, list):
        for each in value:
            yield from labels(each)


def test_every_rank_has_its_objects_rank_63_too(objects: list[dict[str, Any]]) -> None:
    for kind in ("StatefulSet", "Service"):
        names = [each["metadata"]["name"] for each in of(objects, kind)]
        assert names == [f"{longest_name()}-r{rank}" for rank in range(RANKS)]


def test_every_name_is_one_and_of_its_kinds_length(objects: list[dict[str, Any]]) -> None:
    for each in objects:
        name = each["metadata"]["name"]
        assert re.fullmatch(DNS_1035 if each["kind"] == "Service" else DNS_1123, name)
        assert len(name) <= (LABEL if each["kind"] in ("Service", "StatefulSet") else 253), name
    assert len({(each["kind"], each["metadata"]["name"]) for each in objects}) == len(objects)


def test_every_label_is_one(objects: list[dict[str, Any]]) -> None:
    found = [pair for each in objects for group in labels(each) for pair in group.items()]
    assert (f"{longest_name()}-r63-0") in [value for _, value in found], "the Services' selectors"
    for key, value in found:
        assert re.fullmatch(LABEL_KEY, key)
        assert len(key.rpartition("/")[2]) <= LABEL
        assert re.fullmatch(LABEL_VALUE, value)
        assert len(value) <= LABEL, (key, value)


def test_what_the_statefulset_controller_derives_fits_in_labels(
    objects: list[dict[str, Any]],
) -> None:
    for each in of(objects, "StatefulSet"):
        name = each["metadata"]["name"]
        # statefulset.kubernetes.io/pod-name, and the pod's host name.
        assert len(f"{name}-0") <= LABEL
        # controller-revision-hash
        assert len(name) + 1 + REVISION_HASH <= LABEL


def test_every_hosts_name_fits_dns_with_any_clusters_domain(objects: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        name = host(longest_name(), namespace=NAMESPACE, rank=rank)
        assert all(len(label) <= LABEL for label in name.split("."))
        # 253 is the bound of DNS; a cluster's domain has at least 100 characters left.
        assert len(name) + 100 <= 253


def test_every_secret_fits_into_one(objects: list[dict[str, Any]]) -> None:
    for each in of(objects, "Secret"):
        size = sum(len(base64.b64decode(value)) for value in each["data"].values())
        assert size <= MOST_SECRET_BYTES, (each["metadata"]["name"], size)
        for key in each["data"]:
            assert re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key)
