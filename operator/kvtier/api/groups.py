"""``spec.model.layout.groups``: hybrids, whose layers do not all keep the same KV.

A group is a number of layers that keep it alike. What a hit on n tokens moves is the sum over the
groups: some grow with every token, a sliding window stops growing at its size, and the state of
linear attention has one size for every prefix.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ConfigDict, Field, JsonValue

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import Integer

MAX_GROUPS = 16
_IDENTITY = extra(Change.GENERATION)


class Attention(StrEnum):
    """How the layers of a group keep the past."""

    FULL = "Full"
    SLIDING_WINDOW = "SlidingWindow"
    LINEAR = "Linear"
    SPARSE_INDEX = "SparseIndex"


@dataclass(frozen=True, slots=True)
class _Form:
    """The sizes of one kind of attention: one of ``needs`` whole, and what it ``takes`` beside."""

    needs: tuple[tuple[str, ...], ...]
    takes: tuple[str, ...] = ()

    def names(self) -> set[str]:
        return {name for names in (*self.needs, self.takes) for name in names}

    def wanted(self) -> str:
        return ", or ".join(" and ".join(names) for names in self.needs)


_HEADS = ("kvHeads", "headDim")
_LATENT = ("kvLoraRank", "qkRopeHeadDim")
FORMS = {
    Attention.FULL: _Form(
        needs=(_HEADS, _LATENT), takes=("valueHeadDim", "compressionStride", "entryBytes")
    ),
    Attention.SLIDING_WINDOW: _Form(
        needs=(("window", *_HEADS), ("window", *_LATENT)), takes=("valueHeadDim", "entryBytes")
    ),
    Attention.LINEAR: _Form(needs=(("stateBytes",),)),
    Attention.SPARSE_INDEX: _Form(
        needs=(("indexHeadDim",),), takes=("compressionStride", "entryBytes")
    ),
}
_SIZES = sorted(set[str]().union(*(form.names() for form in FORMS.values())))
_BOTH = "has kvHeads, headDim or valueHeadDim, and kvLoraRank or qkRopeHeadDim"


def _rules() -> list[dict[str, JsonValue]]:
    """``FORMS`` as rules for the API server."""

    def any_of(names: Iterable[str]) -> str:
        return " || ".join(f"has(self.{name})" for name in names)

    rules = [
        rule(
            f"!({any_of((*_HEADS, 'valueHeadDim'))}) || !({any_of(_LATENT)})",
            f"{_BOTH}: keep one of the two forms",
        )
    ]
    for kind, form in FORMS.items():
        whole = " || ".join(
            "(" + " && ".join(f"has(self.{name})" for name in names) + ")" for names in form.needs
        )
        foreign = [name for name in _SIZES if name not in form.names()]
        rules += [
            rule(
                f"self.attention != '{kind.value}' || {whole}",
                f"attention {kind.value} needs {form.wanted()}",
            ),
            rule(
                f"self.attention != '{kind.value}' || !({any_of(foreign)})",
                f"attention {kind.value} has no {', '.join(foreign[:-1])} or {foreign[-1]}",
            ),
        ]
    return rules


def _size(most: int, description: str, *, least: int = 1) -> Integer | None:
    size: Integer | None = Field(
        default=None, ge=least, le=most, description=description, json_schema_extra=_IDENTITY
    )
    return size


class AttentionGroup(Model):
    """Layers that keep the same KV."""

    model_config = ConfigDict(json_schema_extra=extra(rules=_rules()))

    attention: Attention = Field(
        description="Full: KV of every token. SlidingWindow: KV of the last window tokens. Linear:"
        " a state of one size, whatever the length. SparseIndex: the keys by which sparse"
        " attention chooses tokens, in layers whose KV another group counts.",
        json_schema_extra=_IDENTITY,
    )
    layers: Integer = Field(
        ge=1,
        le=1024,
        description="Layers in this group.",
        json_schema_extra=_IDENTITY,
    )
    kv_heads: Integer | None = _size(
        1024, "KV heads of these layers, of the whole model. num_key_value_heads in config.json."
    )
    head_dim: Integer | None = _size(
        8192, "Elements of one head's key, and of its value unless valueHeadDim says otherwise."
    )
    value_head_dim: Integer | None = _size(
        8192, "Elements of one head's value, where it is not as long as the key."
    )
    kv_lora_rank: Integer | None = _size(
        65536, "Elements of the latent vector that stands for K and V. kv_lora_rank in config.json."
    )
    qk_rope_head_dim: Integer | None = _size(
        65536, "Elements of the rotary key beside the latent. qk_rope_head_dim.", least=0
    )
    window: Integer | None = _size(
        1 << 24, "Tokens that a sliding window keeps. sliding_window in config.json."
    )
    state_bytes: Integer | None = _size(
        1 << 30,
        "Bytes of the state of one linear layer, all ranks together. Stored once for every prefix"
        " that a hit can end at: every chunk.",
    )
    index_head_dim: Integer | None = _size(
        65536, "Elements of one index key. index_head_dim in config.json."
    )
    compression_stride: Integer | None = _size(
        65536, "Tokens that share one entry, where attention compresses the past.", least=2
    )
    entry_bytes: Integer | None = _size(
        1 << 24,
        "Bytes of one layer's entry as the engine stores it, where that is not elements x bytes of"
        " kvCacheDtype: fp8 with scales, an index kept in bfloat16.",
    )


def problems(groups: list[AttentionGroup]) -> list[str]:
    """What the rules say, for tiers that were stored before them: lines with field and fix."""
    found = [line for index, group in enumerate(groups) for line in _group(index, group)]
    if not any(group.attention is Attention.FULL for group in groups):
        found.append(
            "spec.model.layout.groups: no group has attention Full; add it (a model whose KV does"
            " not grow with the prompt has no break-even)"
        )
    return found


def _group(index: int, group: AttentionGroup) -> list[str]:
    path, kind, form = f"spec.model.layout.groups[{index}]", group.attention, FORMS[group.attention]
    given = group.model_dump(by_alias=True, exclude_none=True).keys() - {"attention", "layers"}
    found = [
        f"{path}.{name}: attention {kind.value} has none; remove it"
        for name in sorted(given - form.names())
    ]
    if given & {*_HEADS, "valueHeadDim"} and given & {*_LATENT}:
        found.append(f"{path}: {_BOTH}; keep one of the two forms")
    if not any(given.issuperset(names) for names in form.needs):
        found.append(f"{path}: attention {kind.value} needs {form.wanted()}; add what is missing")
    return found
