"""A Hugging Face config.json as the layout of a tier's model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvtier.api.scalars import shown
from kvtier.api.types import Attention, AttentionGroup, GqaLayout, Layout, MlaLayout
from kvtier.modelconfig.architectures import ARCHITECTURES
from kvtier.modelconfig.families import groups
from kvtier.modelconfig.fields import Fields, UnreadableConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a config says about KV: the architecture that decides, and the layout."""

    architecture: str
    layout: Layout


def read(document: Mapping[str, Any]) -> ModelConfig:
    """The layout that ``document``, a parsed config.json, describes.

    A multimodal model's language part is in ``text_config``. Draft layers (multi-token prediction)
    are not counted: they keep KV only in engines that use them. Raises UnreadableConfig, one line,
    for an architecture that is not in the table, and for a field that is missing or makes no sense.
    """
    named = document.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise UnreadableConfig(
            f"architectures: {shown(named)} does not name one; use the model's own config.json"
        )
    name = named[0]
    if name not in ARCHITECTURES:
        raise UnreadableConfig(
            f"architectures: {shown(name)} is not known to kvtier; write model.layout by hand, or"
            " bytesPerToken (docs/models.md has the known ones)"
        )
    config = Fields(document)
    if config.get("text_config") is not None:
        config = config.part("text_config")
    try:
        found = groups(config, ARCHITECTURES[name])
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise UnreadableConfig(
            f"{config.at('num_hidden_layers')}: the layout gets {detail['loc'][-1]}"
            f" {shown(detail['input'])}: {detail['msg']}"
        ) from None
    if not any(group.attention is Attention.FULL for group in found):
        raise UnreadableConfig(
            f"{config.at('sliding_window')}: no layer keeps every token, so that KV does not grow"
            " with the prompt; kvtier has no break-even for that"
        )
    return ModelConfig(architecture=name, layout=_layout(found))


def _layout(found: list[AttentionGroup]) -> Layout:
    """One group of plain heads or latents has a form of its own, which every striping can run."""
    if len(found) == 1:
        [only] = found
        given = only.model_dump(exclude_none=True).keys() - {"attention"}
        if given == {"layers", "kv_heads", "head_dim"}:
            return Layout(gqa=GqaLayout.model_validate(only.model_dump(include=given)))
        if given == {"layers", "kv_lora_rank", "qk_rope_head_dim"}:
            return Layout(mla=MlaLayout.model_validate(only.model_dump(include=given)))
    return Layout(groups=found)
