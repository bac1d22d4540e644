"""``kvtier plan --what-if``: the same tier with other figures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.types import API_VERSION, KIND, KVCacheTier
from kvtier.breakeven.assessment import LinkFigures
from kvtier.breakeven.patterns import Access
from kvtier.breakeven.tier import crossed_level, declared_link
from kvtier.cli.errors import BadInput

EXAMPLES: Final = {
    "bandwidth": "100G",
    "roundTrip": "20ms",
    "compression": "3.5",
    "access": Access.PER_TOKEN_STREAM.value,
    "hitLatency": "300ms",
    "hitEngineTime": "30ms",
    "prefillRate": "8000",
    "maxEngines": "16",
    "ranks": "4",
    "memoryPerRank": "128Gi",
    "requestsPerSecond": "2.5",
    "hitRate": "0.6",
}
"""Everything that can be asked, each with a value of its form."""

_SECTIONS: Final = {
    "hitLatency": "pool",
    "hitEngineTime": "pool",
    "prefillRate": "pool",
    "maxEngines": "pool",
    "ranks": "pool",
    "memoryPerRank": "store",
    "requestsPerSecond": "workload",
    "hitRate": "workload",
}
"""Where the spec has the fields that are asked for by their own name."""
_WHOLE: Final = frozenset({"prefillRate", "maxEngines", "ranks"})
_FIELDS: Final = {"bandwidth": "bitsPerSecond", "prefillRate": "tokensPerSecond"}
"""What an error calls a field that is asked for by another name."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What was asked: ``changes`` as given, and the two that are no fields of a tier."""

    changes: Mapping[str, str]
    compression: float
    access: Access

    @property
    def another_link(self) -> bool:
        """Whether the link is to be another than it is."""
        return not {"bandwidth", "roundTrip"}.isdisjoint(self.changes)

    @property
    def another_rate(self) -> bool:
        """Whether engines are to prefill at another rate than they do."""
        return "prefillRate" in self.changes


def parse(text: str) -> WhatIf:
    """``bandwidth=100G,compression=3.5``. Raises BadInput naming the part and the fix."""
    changes: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        if name not in EXAMPLES:
            raise BadInput(f"--what-if {name}: not known; write one of {', '.join(EXAMPLES)}")
        if name in changes:
            raise BadInput(f"--what-if {name}: there twice; keep one")
        if not value:
            raise BadInput(f"--what-if {name}: no value; write {name}={EXAMPLES[name]}")
        changes[name] = value
    return WhatIf(
        changes=changes,
        compression=_compression(changes.get("compression", "1")),
        access=_access(changes.get("access", Access.ONCE_PER_REQUEST.value)),
    )


def apply(
    tier: KVCacheTier,
    asked: WhatIf,
    *,
    reach: str | None = None,
    measured: LinkFigures | None = None,
) -> KVCacheTier:
    """The tier with the changed link and figures, checked like any other. Raises BadInput.

    ``reach`` is that of ``declared_link``; the link that is changed is the ``measured`` one, where
    there is one, and else the declared one.
    """
    spec: dict[str, Any] = tier.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, section in _SECTIONS.items():
        if name in asked.changes:
            spec.setdefault(section, {})[name] = _value(name, asked.changes[name])
    link = {
        field: asked.changes[name]
        for name, field in (("bandwidth", "bitsPerSecond"), ("roundTrip", "roundTrip"))
        if name in asked.changes
    }
    if link:
        placement = spec["placement"]
        if measured is not None:
            level = reach or placement.get("within") or placement["domains"][-1]["name"]
            _declare(placement, measured, level=level)
            _change_link(placement, link, domain=level)
        else:
            found = declared_link(tier.spec, reach=reach)
            level = crossed_level(tier.spec, reach=reach) or placement["domains"][-1]["name"]
            if found is None:
                _new_link(placement, link, domain=level)
            else:
                _change_link(placement, link, domain=found.domain)
    metadata = {"name": tier.metadata.name, "namespace": tier.metadata.namespace}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        return parse_tier(document)
    except InvalidTier as error:
        raise BadInput(*(_told(line, asked.changes) for line in error.errors)) from None


def _value(name: str, text: str) -> Any:
    """The field's value; a rate counts for prompts of all lengths. Raises BadInput."""
    if name not in _WHOLE:
        return text
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) is None:
        raise BadInput(
            f"--what-if {name}: {text!r} is not a whole number; write {name}={EXAMPLES[name]}"
        )
    return [{"tokensPerSecond": int(text)}] if name == "prefillRate" else int(text)


def _told(line: str, changes: Mapping[str, str]) -> str:
    """The error under the name that was asked for, not that of the field which it changed."""
    field, _, problem = line.partition(": ")
    for name in changes:
        if field.endswith(f".{_FIELDS.get(name, name)}"):
            return f"--what-if {name}: {problem}"
    return f"--what-if: {line}"


def _declare(placement: dict[str, Any], link: LinkFigures, *, level: str) -> None:
    """Make a link that was measured the declared one of this level."""
    others = [each for each in placement["links"] if each["domain"] != level]
    figures = {
        "domain": level,
        "bitsPerSecond": str(round(8 * link.bytes_per_second)),
        "roundTrip": f"{1e3 * link.round_trip_seconds:.6f}ms",
    }
    placement["links"] = [*others, figures]


def _new_link(placement: dict[str, Any], figures: Mapping[str, str], *, domain: str) -> None:
    """Declare a link for the level that hits cross, where none is. Raises BadInput."""
    for field, name in (("bitsPerSecond", "bandwidth"), ("roundTrip", "roundTrip")):
        if field not in figures:
            raise BadInput(
                f"--what-if {name}: missing, and the tier declares no link that hits cross; add "
                f"{name}={EXAMPLES[name]}"
            )
    placement["links"] = [*placement.get("links", ()), {"domain": domain, **figures}]


def _change_link(placement: dict[str, Any], change: Mapping[str, str], *, domain: str) -> None:
    """Change the link that the verdict is about."""
    for link in placement["links"]:
        if link["domain"] == domain:
            link.update(change)


def _compression(text: str) -> float:
    ratio = float(text) if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text, re.ASCII) else 0.0
    if not 1 <= ratio <= 1000:
        raise BadInput(f"--what-if compression: {text!r} is not from 1 to 1000; write a ratio: 3.5")
    return ratio


def _access(text: str) -> Access:
    try:
        return Access(text)
    except ValueError:
        known = ", ".join(pattern.value for pattern in Access)
        raise BadInput(f"--what-if access: {text!r} is not known; write one of {known}") from None
