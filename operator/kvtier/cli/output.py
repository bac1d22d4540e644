"""What commands print: documents as YAML or JSON, and lines beside them."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kvtier.cli import terminal
from kvtier.placement.findings import Finding

Document = Mapping[str, Any]


def findings(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as every document has them."""
    return [
        {
            "reason": each.reason,
            "severity": each.severity.value,
            "blocks": each.blocks,
            "message": each.message,
        }
        for each in found
    ]


class _Dumper(yaml.SafeDumper):
    """YAML in which text of several lines stays readable, and nothing is an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def document(content: Document, form: str) -> str:
    """One document; ``form`` is ``json`` or ``yaml``."""
    return documents([content], form) if form == "yaml" else _json(content)


def documents(contents: Sequence[Document], form: str) -> str:
    """Several objects: a stream of YAML documents, or a Kubernetes List in JSON."""
    if form == "json":
        return _json({"apiVersion": "v1", "kind": "List", "items": list(contents)})
    # Enumerations are strings to JSON and unknown to the YAML library.
    plain = json.loads(json.dumps(list(contents)))
    return yaml.dump_all(
        plain,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        explicit_start=len(plain) > 1,
    )


def _json(content: Document) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def say(line: str) -> None:
    """Tell a person something beside the output."""
    terminal.clear()
    print(f"kvtier: {terminal.plain(line)}", file=sys.stderr, flush=True)
