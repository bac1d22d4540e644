"""docs/api.md, generated from the models: ``python -m kvtier.api.reference > docs/api.md``."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.api.base import CHANGE_KEY, Change
from kvtier.api.crd import COLUMNS, NAME_RULES, Schema, annotated_schema
from kvtier.api.status import KVCacheTierStatus
from kvtier.api.types import API_VERSION, KIND, SHORT_NAME, KVCacheTierSpec

_NEWLINE = "\n"
_INTRODUCTION = f"""# The API: every field of `{KIND}`

Generated from the models by `python -m kvtier.api.reference`; do not edit.

`{API_VERSION}`, kind `{KIND}`, short name `{SHORT_NAME}`, namespaced. In a cluster `kubectl explain
{SHORT_NAME}.spec` shows the same. Quantities and durations have Kubernetes' forms; decimals are
strings. Unknown fields are refused.

`kvtier`'s commands also refuse a repeated key, and an unquoted value or key that YAML 1.1, YAML 1.2
and kubectl do not read alike (`yes`, `0777`, `1e3`, `12:34:56`, `2026-11-29`), with its line and
what to write.

{"".join(f"- {rule['message']}.{_NEWLINE}" for rule in NAME_RULES)}
What a change of an existing tier does:

- **{Change.LIVE.value}**: takes effect without a restart of a rank.
- **{Change.ROLL.value}**: all ranks restart at once and the cache starts empty, because losing
  one rank loses the tier anyway. `paused` holds it back.
- **{Change.NEXT_START.value}**: a rank that starts, for whatever reason, starts by it. Ranks that
  run and hold KV are left where they are; ranks that hold nothing move at once.
- **{Change.GENERATION.value}**: KV of the old value is never read with the new one. The tier gets
  another generation, with a Secret of its own that engines must mount. No rank restarts. The old
  generation serves until `rollout` says that it is over ([generations](generations.md)).
- **{Change.REFUSED.value}**: the API server refuses it.

## Spec
"""

_STATUS_INTRODUCTION = """
## Status

Written by kvtier only. Numbers that move all the time are metrics, not status.
"""


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    schema: Schema
    required: bool


def markdown() -> str:
    """The whole page."""
    spec = [
        (
            f"`{row.path}`",
            _type(row.schema),
            "yes" if row.required else "",
            _default(row.schema),
            _bounds(row.schema),
            row.schema.get(CHANGE_KEY, ""),
            row.schema.get("description", ""),
        )
        for row in _rows(annotated_schema(KVCacheTierSpec), "")
    ]
    status = [
        (f"`{row.path}`", _type(row.schema), row.schema.get("description", ""))
        for row in _rows(annotated_schema(KVCacheTierStatus), "")
    ]
    columns = [(name, f"`{path}`") for name, _, path in COLUMNS]
    return "".join(
        (
            _INTRODUCTION,
            _table(
                ("field", "type", "required", "default", "bounds", "a change", "what it is"), spec
            ),
            _STATUS_INTRODUCTION,
            _table(("field", "type", "what it is"), status),
            f"\n## Columns of `kubectl get {SHORT_NAME}`\n",
            _table(("column", "field"), columns),
        )
    )


def _rows(schema: Schema, path: str) -> Iterator[_Row]:
    required = set(schema.get("required", ()))
    for name, below in schema.get("properties", {}).items():
        at = f"{path}.{name}" if path else name
        yield _Row(at, below, name in required)
        yield from _rows(below, at)
        if "items" in below:
            yield from _rows(below["items"], f"{at}[]")


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}s"
    if "additionalProperties" in schema:
        return "map of strings"
    return "time" if schema.get("format") == "date-time" else str(schema["type"])


def _default(schema: Schema) -> str:
    default: Any = schema.get("default")
    return "" if default in (None, {}) else f"`{json.dumps(default)}`"


def _bounds(schema: Schema) -> str:
    parts = [", ".join(f"`{value}`" for value in schema.get("enum", ()))]
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " keys"),
    ):
        parts.append(_range(schema.get(low), schema.get(high), unit))
    rules = [*schema.get("x-kubernetes-validations", ())]
    rules += schema.get("items", {}).get("x-kubernetes-validations", ())
    parts += [rule["message"] for rule in rules]
    return "; ".join(part for part in parts if part)


def _range(low: int | None, high: int | None, unit: str) -> str:
    if high is None:
        return ""
    return f"{low:,} to {high:,}{unit}" if low is not None else f"at most {high:,}{unit}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n" + "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


if __name__ == "__main__":
    print(markdown(), end="")
