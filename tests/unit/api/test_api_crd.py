"""The generated CRD: what can be said without an API server (tests/apiserver asks one)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kvtier.api.crd import crd, crd_yaml, structural_schema
from kvtier.api.reasons import CONDITION_REASONS
from kvtier.api.types import Model

CHECKOUT = Path(__file__).parents[3]
ROOT = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key, sign in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from nodes(schema[key], path + sign)


FIELDS = {
    path: schema
    for part in ("spec", "status")
    for path, schema in nodes(ROOT["properties"][part], part)
}


def test_the_file_in_crds_is_what_the_models_say() -> None:
    file = CHECKOUT / "crds" / "kvtier.dev_kvcachetiers.yaml"
    assert file.read_text() == crd_yaml(), "run `kvtier crd > crds/kvtier.dev_kvcachetiers.yaml`"


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_is_described_and_bounded(path: str) -> None:
    schema = FIELDS[path]
    assert schema.get("description") or path.endswith("{}"), "kubectl explain shows nothing"
    kind = schema.get("type")
    if kind == "string":
        assert "enum" in schema or "maxLength" in schema or schema.get("format") == "date-time"
    elif kind == "array":
        assert "maxItems" in schema
    elif "additionalProperties" in schema:
        assert "maxProperties" in schema
    elif kind == "integer":
        assert "minimum" in schema
        assert "maximum" in schema or path.startswith("status")


def test_nothing_is_left_that_a_structural_schema_cannot_say() -> None:
    text = json.dumps(crd())
    for word in ("$ref", "$defs", "anyOf", "propertyNames", '"const"', '"title"', "x-kvtier"):
        assert word not in text


def test_every_rule_has_a_message_for_people() -> None:
    rules = [
        rule for schema in FIELDS.values() for rule in schema.get("x-kubernetes-validations", ())
    ]
    assert len(rules) > 20
    for rule in rules:
        assert rule["message"]
        assert "\n" not in rule["message"]


def test_optional_objects_with_defaults_inside_default_to_empty() -> None:
    spec = ROOT["properties"]["spec"]["properties"]
    assert spec["workload"].get("default", {}) == {}
    assert spec["placement"]["default"] == {}
    assert spec["rollout"]["default"] == {}
    assert spec["pool"]["properties"]["parallelism"]["default"] == {}
    assert spec["pool"]["properties"]["engine"]["default"] == {}
    assert "default" not in spec["model"]["properties"]["layout"]["properties"]["gqa"]


def test_condition_types_fit_the_status_schema() -> None:
    condition = ROOT["properties"]["status"]["properties"]["conditions"]["items"]["properties"]
    for kind, reasons in CONDITION_REASONS.items():
        assert kind in condition["type"]["description"]
        assert all(len(reason) <= condition["reason"]["maxLength"] for reason in reasons)


class Tree(Model):
    children: list["Tree"]


class Either(Model):
    value: int | list[int]


@pytest.mark.parametrize("model", [Tree, Either])
def test_a_model_that_has_no_structural_schema_is_refused(model: type[BaseModel]) -> None:
    with pytest.raises(ValueError, match="structural schema"):
        structural_schema(model)
