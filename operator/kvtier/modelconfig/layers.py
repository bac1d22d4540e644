"""Which of a model's layers keep every token and which a window, by the fields that say so."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from kvtier.api.scalars import shown
from kvtier.modelconfig.architectures import Architecture
from kvtier.modelconfig.fields import Fields

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


def by_type(config: Fields, kinds: Sequence[Any], *, known: Collection[str]) -> Counter[str]:
    """How many layers of each type. ``kinds`` are of ``layer_types``; others are refused."""
    for kind in kinds:
        if kind not in known:
            raise config.bad(
                "layer_types", f"{shown(kind)} is not known here; write model.layout by hand"
            )
    return Counter(kinds)


def sliding(config: Fields, architecture: Architecture, *, layers: int) -> int:
    """How many of ``layers`` have a sliding window.

    By ``layer_types``, else by a pattern (each n-th layer is full), else by ``use_sliding_window``
    and ``max_window_layers`` (layers from that one on slide), else all where a window is set.
    """
    if config.get("layer_types") is not None:
        types = config.each_layer("layer_types", layers=layers)
        return by_type(config, types, known=(FULL, SLIDING))[SLIDING]
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return 0
    pattern = config.optional_size("sliding_window_pattern") or architecture.windows_every
    if pattern is not None:
        return layers - layers // pattern
    if config.get("use_sliding_window") is True:
        return max(0, layers - config.size("max_window_layers", least=0))
    return layers


def linear(config: Fields, *, layers: int) -> int:
    """How many of ``layers`` are linear: by ``layer_types``, else all but each n-th."""
    if config.get("layer_types") is not None:
        types = config.each_layer("layer_types", layers=layers)
        return by_type(config, types, known=(FULL, LINEAR))[LINEAR]
    return layers - layers // config.size("full_attention_interval")


def ones(config: Fields, name: str, *, layers: int) -> int:
    """How many entries of a list of 0 and 1 for each layer are 1."""
    flags = config.each_layer(name, layers=layers)
    if any(flag not in (0, 1) for flag in flags):
        raise config.bad(name, "has entries other than 0 and 1; use the model's own config.json")
    return sum(flags)
