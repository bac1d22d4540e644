"""The table of manifests: tests/apiserver/manifests.yaml."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("manifests.yaml")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One manifest and what is said about it. ``update``: what is applied after it, if anything."""

    name: str
    text: str
    update: str | None
    kubectl: str | None
    kvtier: tuple[str, ...]

    @property
    def judged(self) -> str:
        """The manifest that the messages are about."""
        return self.update or self.text


def manifests() -> list[Manifest]:
    """Every row of the table."""
    table = yaml.safe_load(TABLE.read_text())
    return [_manifest(row, table["base"]) for row in table["manifests"]]


def _manifest(row: dict[str, Any], base: dict[str, Any]) -> Manifest:
    first = merge_patch(base, row.get("patch", {}))
    update = merge_patch(first, row["update"]) if "update" in row else None
    return Manifest(
        name=row["name"],
        # As JSON, so that kubectl and this table agree on what is text and what is a number.
        text=row.get("text") or json.dumps(first),
        update=json.dumps(update) if update else None,
        kubectl=row.get("kubectl"),
        kvtier=tuple(row.get("kvtier", ())),
    )


def merge_patch(document: Any, patch: Any) -> Any:
    """RFC 7396: a JSON merge patch."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
