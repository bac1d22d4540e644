"""A generation keeps its name for ever: identities.yaml has what each version makes of a spec."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.generation.identity import (
    IDENTITY_VERSION,
    canonical_json,
    generation_id,
    id_of,
    identity,
)

TABLE: dict[int, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("identities.yaml").read_text("utf-8")
)
ROWS = [(version, row) for version, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("version", "row"), ROWS, ids=lambda each: str(each)[:60])
def test_a_spec_keeps_its_identity_and_its_id(
    version: int, row: dict[str, Any], make_spec: Any
) -> None:
    spec = make_spec(row["changes"])
    assert canonical_json(identity(spec, version=version)) == row["canonical"]
    assert generation_id(spec, version=version) == row["id"]


@pytest.mark.parametrize(("version", "row"), ROWS, ids=lambda each: str(each)[:60])
def test_an_id_is_the_start_of_the_sha_256_of_the_canonical_json(
    version: int, row: dict[str, Any]
) -> None:
    """Also without kvtier's code: ``printf %s "$canonical" | sha256sum``."""
    assert hashlib.sha256(row["canonical"].encode()).hexdigest()[:12] == row["id"]
    assert id_of(json.loads(row["canonical"])) == row["id"]
    assert json.loads(row["canonical"])["identityVersion"] == version


def test_every_version_that_this_release_knows_is_pinned_by_at_least_20_specs() -> None:
    assert list(TABLE) == list(range(1, IDENTITY_VERSION + 1))
    for rows in TABLE.values():
        assert len(rows) >= 20
        for column in ("name", "id", "canonical"):
            assert len({row[column] for row in rows}) == len(rows)
