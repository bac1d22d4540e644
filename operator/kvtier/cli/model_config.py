"""``--model-config FILE``: the layout from a model's own config.json."""

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

from kvtier.api.load import InvalidTier, parse_tier, read_bytes, read_document
from kvtier.api.scalars import shown
from kvtier.api.types import KVCacheDtype, KVCacheTier, Layout
from kvtier.breakeven.footprint import Footprint, of_layout
from kvtier.breakeven.sizes import ELEMENT_BYTES
from kvtier.cli import files, links
from kvtier.cli.errors import BadInput
from kvtier.generation.identity import layout_identity
from kvtier.modelconfig.fields import UnreadableConfig
from kvtier.modelconfig.read import ModelConfig, read


def add_argument(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--model-config",
        required=required,
        metavar="FILE",
        help="the model's config.json, as on Hugging Face; - is standard input"
        + ("" if required else ". The tier may then leave out model.layout"),
    )


class _Twice(Exception):
    """A key of one object that is there twice: which of the values counts, no standard says."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def load(path: str) -> ModelConfig:
    """The config in ``path``. Raises BadInput, also for what is no readable JSON object."""
    try:
        data = read_bytes(path, fix="name a config.json")
    except InvalidTier as error:
        raise BadInput(*error.errors) from None
    try:
        document = json.loads(data, object_pairs_hook=_unique)
    except _Twice as error:
        raise BadInput(f"{path}: key {shown(str(error))} is there twice; keep one") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply; name a config.json") from None
    except ValueError as error:
        raise BadInput(f"{path}: no JSON ({error}); name a config.json") from None
    if not isinstance(document, Mapping):
        raise BadInput(f"{path}: not an object; name a config.json")
    try:
        return read(document)
    except UnreadableConfig as error:
        raise BadInput(f"{path}: {error}") from None


def load_tier(arguments: argparse.Namespace, *, links_path: str | None = None) -> KVCacheTier:
    """The tier of ``--file``, with the layout of ``--model-config`` and the links of ``links_path``
    where these are given.

    Raises BadInput, also for a tier whose own layout is another one.
    """
    path, config_path = arguments.file, arguments.model_config
    if config_path is None and links_path is None:
        return files.load(path)
    if path == config_path == "-":
        raise BadInput("-: is both --file and --model-config; name a file for one of them")
    config = None if config_path is None else load(config_path)
    given_links = None if links_path is None else links.load(links_path)
    given = False
    try:
        document = read_document(path)
        if config is not None:
            given = _fill_in(document, config.layout)
        if given_links is not None:
            links.put(document, given_links)
        tier = parse_tier(document)
    except InvalidTier as error:
        told = [links.told(line, links_path) if links_path else line for line in error.errors]
        raise BadInput(*told) from None
    if config is not None and given:
        _compare(tier, config, config_path)
    return tier


def hit(footprint: Footprint) -> str:
    """``30,720 n + 192,061,440``: bytes of a hit on n tokens, its windows full."""
    constant = f" + {footprint.constant:,}" if footprint.constant else ""
    return f"{math.ceil(footprint.slope):,} n{constant}"


def wire_form(layout: Layout) -> dict[str, Any]:
    """The layout as it is written into a tier."""
    return layout.model_dump(mode="json", by_alias=True, exclude_none=True)


def _fill_in(document: dict[str, Any], layout: Layout) -> bool:
    """Put ``layout`` where the tier has none. Whether it had one."""
    spec = document.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict):
        return False
    if model.get("layout") is not None:
        return True
    model["layout"] = wire_form(layout)
    return False


def _compare(tier: KVCacheTier, config: ModelConfig, path: str) -> None:
    own, dtype = tier.spec.model.layout, tier.spec.model.kv_cache_dtype
    if layout_identity(own) == layout_identity(config.layout):
        return
    ours, theirs = (_footprint(layout, dtype) for layout in (own, config.layout))
    if ours == theirs and own.bytes_per_token is not None:
        return
    one, other = hit(ours), hit(theirs)
    if one == other:
        one, other = (json.dumps(wire_form(layout)) for layout in (own, config.layout))
    raise BadInput(
        f"spec.model.layout: a hit on n tokens is {one} bytes in {dtype.value}, and by {path}"
        f" ({config.architecture}) {other}; correct one of them, or leave model.layout out"
    )


def _footprint(layout: Layout, dtype: KVCacheDtype) -> Footprint:
    return of_layout(layout, ELEMENT_BYTES[dtype.value])
