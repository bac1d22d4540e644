"""The Secret's ``NOTICE``: what to know before using it, in plain words."""

from typing import Final

from kvtier.api.types import Adapter, Connector, KVCacheTier
from kvtier.breakeven.words import counted
from kvtier.render import vllm
from kvtier.render.transport import Transport

STALL_TOKENS: Final = 16384

HYBRID_NOTICE: Final = (
    "Hybrid attention (model.layout.groups) has not been validated with the real LMCache: which "
    "objects it keeps of windows and linear states, and whether a hit can end at every chunk, is "
    "read from its source, not run."
)
GENERIC_NOTICE: Final = (
    "For clients other than LMCache: connection.json has the ranks' addresses, a key prefix for "
    "each, and user and password. A rank refuses keys without its prefix."
)
_SLOW_LINK: Final = (
    "The link is too slow for this pool: even one worker per engine needs a timeout above 1 s. "
    "Lower spec.pool.maxEngines or chunkTokens, or measure the link (kvtier probe) and declare "
    "what it does."
)


def notice(tier: KVCacheTier, settings: Transport) -> str:
    """One paragraph."""
    spec = tier.spec
    told = [
        _adapter(tier, settings),
        None if settings.fits else _SLOW_LINK,
        vllm.too_old(spec),
        None if spec.pool.engine.connector is Connector.GENERIC else vllm.policy_left_out(spec),
        HYBRID_NOTICE if spec.model.layout.groups is not None else None,
    ]
    return " ".join(filter(None, told))


def _adapter(tier: KVCacheTier, settings: Transport) -> str:
    engine = tier.spec.pool.engine
    if engine.connector is Connector.GENERIC:
        return GENERIC_NOTICE
    assumed = f"the declared link of domain {settings.link}" if settings.link else "25 Gb/s"
    if engine.adapter is Adapter.PLUGIN:
        return (
            "kvtier's plugin for LMCache: a rank that is dead or hung is a miss. The first request "
            f"to it waits at most {settings.request_timeout:g} s (request_timeout by {assumed}), "
            "later ones not at all until it is back. LMCache starts while ranks are down."
        )
    # What stock LMCache does when a rank is lost, in figures.
    chunks = -(-STALL_TOKENS // tier.spec.pool.chunk_tokens)
    return (
        f"Stock LMCache: while a rank is dead or hung, every lookup of {STALL_TOKENS} tokens "
        f"waits {settings.stall(chunks):.3g} s ({counted(chunks, 'chunk')}, "
        f"{counted(settings.workers, 'worker')}, request_timeout "
        f"{settings.request_timeout:g} s by {assumed}). LMCache exits at start "
        "when its rank is down."
    )
