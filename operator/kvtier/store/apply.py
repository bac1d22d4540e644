"""Bringing a running server's live settings to what is intended, and proving it by readback."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvtier.store.config import differing
from kvtier.store.protocol import Store, StoreDenied, StoreError, StoreUnreachable


@dataclass(frozen=True, slots=True)
class AppliedSettings:
    """What one pass did.

    ``changed``: name -> (before, after). ``not_applied``: name -> one line that says what the
    server has instead and why; empty when all is as intended.
    """

    changed: Mapping[str, tuple[str, str]]
    not_applied: Mapping[str, str]


async def apply_live_settings(store: Store, intent: Mapping[str, str]) -> AppliedSettings:
    """Set those of ``intent`` that differ, read back and compare. Writes nothing if none does.

    A server that refuses one setting refuses the whole command; the others are then set one by
    one, so that a refused ``maxclients`` does not hold up ``maxmemory``. Raises StoreUnreachable
    and StoreDenied; what a server would not take is returned, not raised.
    """
    if not intent:
        return AppliedSettings(changed={}, not_applied={})
    before = await store.config_get(*intent)
    wanted = {
        name: want for name, (want, have) in differing(intent, before).items() if have is not None
    }
    refusals: dict[str, str] = {}
    after = before
    if wanted:
        refusals = await _set(store, wanted)
        after = await store.config_get(*intent)
    return AppliedSettings(
        changed={
            name: (before[name], after[name])
            for name in wanted
            if name in after and after[name] != before[name]
        },
        not_applied={
            name: _why(want, have=have, refusal=refusals.get(name))
            for name, (want, have) in differing(intent, after).items()
        },
    )


async def _set(store: Store, values: Mapping[str, str]) -> dict[str, str]:
    """Set all at once, or else each alone; returns the refusals in the server's words."""
    try:
        await store.config_set(values)
    except (StoreUnreachable, StoreDenied):
        raise
    except StoreError as error:
        if len(values) == 1:
            return {name: str(error) for name in values}
    else:
        return {}
    refusals: dict[str, str] = {}
    for name, value in values.items():
        refusals |= await _set(store, {name: value})
    return refusals


def _why(want: str, *, have: str | None, refusal: str | None) -> str:
    if have is None:
        return f"wanted {want!r}, this server does not know the setting"
    return f"wanted {want!r}, has {have!r}" + (f" ({refusal})" if refusal else "")
