"""``--nodes FILE``: nodes, and pods of the pool, as ``kubectl get nodes,pods -o yaml`` prints them.

Such files are other people's: whatever is not about the tier is passed over, whatever it looks
like.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import yaml

from kvtier.api.load import InvalidTier, as_text, read_bytes, yaml_documents
from kvtier.api.types import KVCacheTier
from kvtier.cli.around import Around
from kvtier.cli.errors import BadInput
from kvtier.placement.topology import Engine
from kvtier.plan.lost_nodes import node_facts
from kvtier.plan.observed import NodeFacts, Object
from kvtier.plan.placement import FINISHED, engine_of
from kvtier.render.names import POOL_LABEL, RANK_LABEL, TIER_LABEL

MOST_BYTES: Final = 256 << 20
"""About as many nodes as Kubernetes is tested with, as JSON with indents."""
MOST_TEXT: Final = 253
"""What Kubernetes takes of a name; labels and quantities are shorter."""
_FIX: Final = "write what `kubectl get nodes -o yaml` prints"
_Loader: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""All scalars are text to it: nothing in a file can be a wrong date or number."""


def load(path: str, tier: KVCacheTier) -> Around:
    """What the file says of the tier's surroundings. Raises BadInput."""
    try:
        documents = _documents(path)
    except InvalidTier as error:
        raise BadInput(*error.errors) from None
    nodes: dict[str, NodeFacts] = {}
    engines: list[Engine] = []
    ranks: dict[int, str] = {}
    namespaces: set[str] = set()
    for kind, found in _objects(documents):
        if kind == "Node":
            node = _node(found)
            if node["metadata"]["name"]:
                nodes[node["metadata"]["name"]] = node_facts(node)
        elif kind == "Pod":
            pod = _pod(found)
            labels, namespace = pod["metadata"]["labels"], pod["metadata"]["namespace"]
            ours = tier.metadata.name in (labels.get(POOL_LABEL), labels.get(TIER_LABEL))
            if not ours or (_is_named(tier) and namespace != tier.metadata.namespace):
                continue
            namespaces.add(namespace)
            if labels.get(POOL_LABEL) == tier.metadata.name and (engine := engine_of(pod)):
                engines.append(engine)
            elif (rank := _rank(pod, tier)) is not None:
                ranks[rank] = pod["spec"]["nodeName"]
    if not nodes:
        raise BadInput(f"{path}: no Node in it; {_FIX}")
    if len(namespaces) > 1:
        raise BadInput(
            f"{path}: pods of tiers {tier.metadata.name} in {len(namespaces)} namespaces; write "
            "metadata.namespace into the tier"
        )
    source = "standard input" if path == "-" else path
    return Around(source=source, nodes=nodes, engines=engines, ranks=ranks)


def _is_named(tier: KVCacheTier) -> bool:
    return "namespace" in tier.metadata.model_fields_set


def _rank(pod: Object, tier: KVCacheTier) -> int | None:
    """The rank that the pod is and that has a node, None if it is none."""
    labels, text = pod["metadata"]["labels"], pod["metadata"]["labels"].get(RANK_LABEL, "")
    rank = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else -1
    if labels.get(TIER_LABEL) != tier.metadata.name or not 0 <= rank < tier.spec.pool.ranks:
        return None
    if not pod["spec"]["nodeName"] or pod["status"]["phase"] in FINISHED:
        return None
    return rank


def _documents(path: str) -> list[Any]:
    """Raises InvalidTier."""
    data = read_bytes(path, most=MOST_BYTES, fix="leave nodes out with -l")
    text = as_text(data, path, fix=_FIX)
    # A hundred times as fast as YAML.
    with suppress(ValueError, RecursionError):
        return [json.loads(text)]
    return yaml_documents(text, path, loader=_Loader, fix=_FIX)


def _objects(documents: list[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Kind and object of each, out of lists too."""
    for document in map(_mapping, documents):
        kind = _text(document.get("kind"))
        if kind == "List" or (kind.endswith("List") and "items" in document):
            for item in map(_mapping, _list(document.get("items"))):
                # The items of a NodeList do not say what they are.
                yield _text(item.get("kind")) or kind.removesuffix("List"), item
        else:
            yield kind, document


def _node(found: Mapping[str, Any]) -> Object:
    """The parts of a node that matter, each of its own type."""
    metadata, spec, status = _parts(found)
    return {
        "metadata": {
            "name": _text(metadata.get("name")),
            "labels": _texts(metadata.get("labels")),
        },
        "spec": {
            "unschedulable": spec.get("unschedulable") in (True, "true"),
            "taints": [_texts(taint) | {"key": key} for taint, key in _keyed(spec, "taints")],
        },
        "status": {
            "allocatable": _texts(status.get("allocatable")),
            "conditions": _conditions(status),
        },
    }


def _pod(found: Mapping[str, Any]) -> Object:
    """The same of a pod."""
    metadata, spec, status = _parts(found)
    known = {
        name: metadata[name]
        for name in ("creationTimestamp", "deletionTimestamp")
        if _text(metadata.get(name))
    }
    containers = [
        {"resources": {"requests": _texts(_mapping(each.get("resources")).get("requests"))}}
        for each in map(_mapping, _list(spec.get("containers")))
    ]
    return {
        "metadata": known
        | {
            "name": _text(metadata.get("name")),
            "namespace": _text(metadata.get("namespace")) or "default",
            "labels": _texts(metadata.get("labels")),
        },
        "spec": {"nodeName": _text(spec.get("nodeName")), "containers": containers},
        "status": {"phase": _text(status.get("phase")), "conditions": _conditions(status)},
    }


def _parts(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_mapping(found.get(name)) for name in ("metadata", "spec", "status")]


def _conditions(status: Mapping[str, Any]) -> list[Mapping[str, str]]:
    return [_texts(each) | {"type": kind} for each, kind in _keyed(status, "conditions", "type")]


def _keyed(
    parent: Mapping[str, Any], name: str, key: str = "key"
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The entries of a list that have text under ``key``, with it."""
    for each in map(_mapping, _list(parent.get(name))):
        if text := _text(each.get(key)):
            yield each, text


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    """A name, a label or a quantity; empty for what can be none."""
    fits = isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable()
    return value if fits else ""


def _texts(value: Any) -> dict[str, str]:
    """What is text of a mapping: labels, quantities."""
    return {key: text for key, each in _mapping(value).items() if (text := _text(each))}
