"""Pure: which other replicas count when a limit is split, and for how long what they said does."""

from dataclasses import dataclass, replace
from typing import Final

from kvtier.limiter.report import Report

SILENT_SECONDS: Final = 1.0
STALE_SECONDS: Final = 30.0
"""Silence after which what a replica took for a storm says nothing of now."""


@dataclass(slots=True)
class Peer:
    """Another replica at one address. Times are seconds of one clock.

    ``listed``: the Service's DNS answer has it. ``report`` is the last that it said, at ``heard``.
    ``refused`` is since when its address has refused connections, None while it does not.
    ``ours``: it is this very replica.
    """

    listed: bool = True
    report: Report | None = None
    heard: float | None = None
    refused: float | None = None
    ours: bool = False


def counts(peer: Peer, *, now: float) -> bool:
    """Whether it gets a share: it was heard within a second, or its pod is still there.

    A replica that is silent may be behind a partition and admit its share all the while, so its
    last demand is kept for as long as DNS has its pod. An address that refuses connections is
    reached, and nobody listens there: that is no partition.
    """
    if peer.ours:
        return False
    if peer.heard is not None and now - peer.heard <= SILENT_SECONDS:
        return True
    gone = peer.refused is not None and (peer.heard is None or now - peer.refused > SILENT_SECONDS)
    return peer.listed and not gone


def said(peer: Peer, *, now: float) -> Report | None:
    """What it last said, as far as it is true yet.

    Its demand is, see ``counts``. What waited by its word drains within seconds, and it admits no
    more than its share; its limit is of a storm that somebody else must see by now.
    """
    silent = 0.0 if peer.heard is None else now - peer.heard
    if peer.report is None or silent <= SILENT_SECONDS:
        return peer.report
    tiers = {
        key: replace(
            tier,
            queued=0.0,
            age=tier.age + silent,
            limit=tier.limit if silent <= STALE_SECONDS else None,
        )
        for key, tier in peer.report.tiers.items()
    }
    return replace(peer.report, tiers=tiers)


def is_over(peer: Peer, *, now: float) -> bool:
    """Whether it need not be asked any more."""
    return not peer.listed and not counts(peer, now=now)
