"""Objects as a report has them: without credentials, and without what nobody reads."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvtier.cli.changes import of_event
from kvtier.redact import REDACTED, is_secret_name, redact_tree

Object = Mapping[str, Any]
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_TOLD: Final = re.compile(
    r"(?:VLLM|LMCACHE|KVTIER|SGLANG|NCCL|NVIDIA|CUDA|UCX|NIXL|GLOO|OMP|TORCH|RAY|TRANSFORMERS"
    r"|TOKENIZERS|PYTHON|VALKEY|POD|NODE|MALLOC)_\w+|PYTHONHASHSEED|PATH|HOSTNAME|TZ|LANG|LC_ALL"
)
"""Variables of containers whose values a report may have. Whoever wrote the others alone knows
what is in them."""
_OF_A_NODE: Final = ("conditions", "allocatable", "capacity", "nodeInfo")


def kept(obj: Object) -> dict[str, Any]:
    """An object for a report. Raises ValueError for a Secret: none is ever to come here."""
    if obj.get("kind") == "Secret":
        raise ValueError("kind: a report has no Secret")
    trimmed = _node(obj) if obj.get("kind") == "Node" else _without_values(obj)
    metadata = dict(trimmed["metadata"])
    metadata.pop("managedFields", None)
    notes = dict(metadata.pop("annotations", None) or {})
    if _LAST_APPLIED in notes:
        notes[_LAST_APPLIED] = REDACTED
    if notes:
        metadata["annotations"] = notes
    found: dict[str, Any] = redact_tree({**trimmed, "metadata": metadata})
    return found


def _node(obj: Object) -> dict[str, Any]:
    """Not the images that it has, nor what others wrote to it."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": "Node",
        "metadata": {name: metadata[name] for name in ("name", "labels") if name in metadata},
        "spec": {
            name: value
            for name, value in (obj.get("spec") or {}).items()
            if name in ("taints", "unschedulable")
        },
        "status": {name: status[name] for name in _OF_A_NODE if name in status},
    }


def _without_values(value: Any) -> Any:
    """Values of variables that are not among ``_TOLD`` are gone, wherever a pod is described."""
    if isinstance(value, Mapping):
        return {
            name: [_variable(each) for each in inner]
            if name == "env" and isinstance(inner, list)
            else _without_values(inner)
            for name, inner in value.items()
        }
    return [_without_values(each) for each in value] if isinstance(value, list) else value


def _variable(found: Any) -> Any:
    if not isinstance(found, Mapping) or "value" not in found:
        return found
    name = str(found.get("name", ""))
    told = _TOLD.fullmatch(name) and not is_secret_name(name)
    return dict(found) if told else {**found, "value": REDACTED}


def event_lines(events: Iterable[Object], *, about: Iterable[str]) -> str:
    """Those of objects with these names, or with names that begin with one and a dash, the oldest
    first."""
    names = tuple(about)
    found = []
    for event in events:
        subject = event.get("involvedObject") or {}
        name = str(subject.get("name", ""))
        if name in names or name.startswith(tuple(f"{each}-" for each in names)):
            change = of_event(event)
            which = f"{subject.get('kind', '')}/{name}"
            found.append(f"{change.at}  {which}  {change.title}: {change.message}")
    return "".join(f"{line}\n" for line in sorted(found))


def metrics_of(text: str, *, namespace: str, tier: str) -> str:
    """Without the series of other tiers."""
    ours = (f'namespace="{namespace}"', f'tier="{tier}"')
    return "".join(
        f"{line}\n"
        for line in text.splitlines()
        if 'tier="' not in line or line.startswith("#") or all(each in line for each in ours)
    )
