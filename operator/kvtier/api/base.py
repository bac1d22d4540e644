"""What every part of the API shares."""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.alias_generators import to_camel

GROUP = "kvtier.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "KVCacheTier"
PLURAL = "kvcachetiers"
SINGULAR = "kvcachetier"
SHORT_NAME = "kvt"
MAX_NAME_LENGTH = 40
MAX_RANKS = 64
CHANGE_KEY = "x-kvtier-change"
READER_DEFAULT_KEY = "x-kvtier-reader-default"
"""Schema key that says what a change does; for the documentation, dropped from the CRD."""


class Change(StrEnum):
    """What editing a field of an existing tier does."""

    LIVE = "live"
    ROLL = "planned roll"
    NEXT_START = "next start of a rank"
    LIVE_FROM_9_1 = "live; planned roll with Valkey 8.1"
    GENERATION = "new generation"
    REFUSED = "refused"


class Model(BaseModel):
    """Base of every part of the API: unknown fields are errors, instances do not change."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_enum_values=False,
        allow_inf_nan=False,
        strict=False,
    )


def rule(expression: str, message: str) -> dict[str, JsonValue]:
    """A CEL rule and what a person reads when it fails."""
    return {"rule": expression, "message": message}


def extra(
    change: Change | None = None,
    *,
    rules: Sequence[dict[str, JsonValue]] = (),
    list_keys: Sequence[str] = (),
    reader_default: bool = False,
) -> dict[str, JsonValue]:
    """Schema keys that pydantic has no name for.

    ``list_keys`` make the list a map by these keys for server-side apply and forbid duplicates.
    ``reader_default`` keeps the default out of the CRD: kvtier reads it, the server does not write
    it. In an item of a list it would make every ``kubectl apply`` a change, and a tier in Git
    forever out of sync.
    """
    schema: dict[str, JsonValue] = {READER_DEFAULT_KEY: True} if reader_default else {}
    if change is not None:
        schema[CHANGE_KEY] = change.value
    if rules:
        schema["x-kubernetes-validations"] = list(rules)
    if list_keys:
        schema["x-kubernetes-list-type"] = "map"
        schema["x-kubernetes-list-map-keys"] = list(list_keys)
    return schema
