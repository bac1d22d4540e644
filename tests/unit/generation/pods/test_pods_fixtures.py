"""Pods as public charts make them, and what each tells of its KV."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.generation.pods.read import config_maps_of, read_pod

TIER = "llama"


def cases() -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted((Path(__file__).parent / "fixtures").glob("*.yaml")):
        found |= {
            f"{path.stem}: {name}": case for name, case in yaml.safe_load(path.read_text()).items()
        }
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_pod_tells_just_this(name: str) -> None:
    case = CASES[name]
    config_maps = case.get("configMaps", {})
    found = read_pod(case["pod"], tier=TIER, config_maps=config_maps)
    reads = case["reads"]
    assert dict(found.fields) == reads["fields"]
    assert dict(found.settings) == reads["settings"]
    assert found.generations == frozenset(reads["generations"])
    assert found.unreadable.keys() == reads["unreadable"].keys()
    for field, part in reads["unreadable"].items():
        assert part in found.unreadable[field]
    assert found.declared == reads.get("declared", False)
    assert (
        not (found.fields.keys() | found.settings.keys() - {"kvCacheDtype"})
        & found.unreadable.keys()
    )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "configMaps" in case])
def test_the_config_maps_that_a_reading_needs_are_named(name: str) -> None:
    case = CASES[name]
    assert config_maps_of(case["pod"]) == case["configMaps"].keys()


def test_there_are_fixtures_of_every_kind() -> None:
    assert len(CASES) >= 40
