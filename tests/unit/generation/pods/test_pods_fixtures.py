"""Pods as public charts make them, and what each tells of its KV."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.generation.pods.read import config_maps_of, data_at_start, read_pod

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


def test_a_pod_is_read_in_a_fraction_of_a_millisecond() -> None:
    """CPU time, with room for a slow machine: 0.2 ms was measured."""
    began = time.process_time()
    for case in CASES.values():
        for _ in range(5):
            read_pod(case["pod"], tier=TIER, config_maps=case.get("configMaps", {}))
    assert (time.process_time() - began) / (5 * len(CASES)) < 0.003


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, False),
        ({"immutable": True}, False),
        ({"immutable": True, "metadata": {"creationTimestamp": "2026-11-01T10:00:00Z"}}, True),
        ({"immutable": True, "metadata": {"creationTimestamp": "2026-11-01T12:00:00Z"}}, False),
        ({"metadata": {"managedFields": [{"time": "2026-11-01T10:00:00Z"}]}}, True),
        ({"metadata": {"managedFields": [{"time": "2026-11-01T12:00:00Z"}]}}, False),
        ({"metadata": {"managedFields": [{"time": "2026-11-01T12:00:01Z"}]}}, False),
        (
            {
                "metadata": {
                    "managedFields": [
                        {"time": "2026-11-01T13:00:00Z"},
                        {"time": "2026-11-01T10:00:00Z"},
                    ]
                }
            },
            False,
        ),
        ({"metadata": {"managedFields": [{"time": "2026-11-01T10:00:00Z"}, {}]}}, False),
    ],
    ids=str,
)
def test_a_config_map_edited_since_the_start_says_nothing_of_the_pod(
    changes: Mapping[str, Any], kept: bool
) -> None:
    started = [
        {"state": {"running": {"startedAt": at}}}
        for at in ("2026-11-01T12:30:00Z", "2026-11-01T12:00:00Z")
    ]
    found = {"model": {"data": {"a": "b"}} | changes}
    data = data_at_start({"status": {"containerStatuses": started}}, found)
    assert data == ({"model": {"a": "b"}} if kept else {})


def test_a_pod_that_has_not_started_takes_no_word_of_a_config_map_that_may_change() -> None:
    written = {"metadata": {"managedFields": [{"time": "2026-11-01T10:00:00Z"}]}, "data": {}}
    waiting = {"status": {"containerStatuses": [{"state": {"waiting": {}}}]}}
    assert data_at_start(waiting, {"model": written}) == {}
    assert data_at_start({}, {"model": written}) == {}
