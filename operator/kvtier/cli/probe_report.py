"""Why a probe does not come, in one line, as far as the tier and its pool show it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.cli.status_report import NO_STATUS, Body, is_ready
from kvtier.placement.topology import Engine
from kvtier.plan.probing import seconds_of
from kvtier.render.names import POOL_LABEL
from kvtier.render.probe import NODE_ANNOTATION

LONG_READY: Final = 600.0
"""Seconds after which an engine's first probe should have come."""
_TURNED_OFF: Final = "probes may be turned off (probe.enabled in the chart's values)"


def obstacle(body: Body, engines: Sequence[Engine] | None) -> str | None:
    """What keeps the operator from probing; None if nothing is known to.

    ``engines`` are the pods of the pool that have a node, None where that is not known.
    """
    metadata, status = body["metadata"], body.get("status") or {}
    name = f"KVCacheTier {metadata['namespace']}/{metadata['name']}"
    if (body.get("spec") or {}).get("paused"):
        return f"{name}: paused, and a paused tier is not probed; set spec.paused to false"
    if not status:
        return f"{name}: {NO_STATUS}"
    if not is_ready(body):
        told = find(status.get("conditions", ()), reasons.READY).get("message")
        return f"{name}: not Ready, and only a Ready tier is probed: {told or 'no condition yet'}"
    if engines is not None and not any(engine.ready for engine in engines):
        label = f"{POOL_LABEL}={metadata['name']}"
        return (
            f"{name}: no Ready engine to measure from among {len(engines)} pods with the label"
            f" {label} that have a node; label the engines' pods, or wait for one"
        )
    return None


def never_probed(body: Body, engines: Sequence[Engine] | None, *, now: datetime) -> str | None:
    """That probes seem to be turned off: nothing was ever measured, though it should have been."""
    if "at" in ((body.get("status") or {}).get("measured") or {}):
        return None
    since = [seconds_of(engine.ready_since) for engine in engines or () if engine.ready]
    if not since or now.timestamp() - min(since) < LONG_READY:
        return None
    return (
        f"nothing was ever measured, though an engine has been Ready for long: {_TURNED_OFF}, or"
        " fail (event ProbeFailed)"
    )


def too_late(name: str, job: Mapping[str, Any] | None) -> str:
    """That the time is over; ``job`` is the last that was seen of the probe's Job."""
    if job is not None:
        return (
            f"no figure in time: Job {name} measures from {node_of(job)}, or has yet to get a pod"
            " there; see kubectl describe, and wait longer with --timeout"
        )
    return (
        f"no figure in time, and no Job {name} was seen: {_TURNED_OFF}, two other tiers may have"
        " their turn, or the operator does not run; the request stands"
    )


def node_of(job: Mapping[str, Any]) -> str:
    """Where a probe's Job measures from."""
    return str(job["metadata"].get("annotations", {}).get(NODE_ANNOTATION, "?"))
