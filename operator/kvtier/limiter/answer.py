"""Pure: what a gateway is answered, and what people are told of a tier."""

import math
from collections.abc import Callable
from typing import Any, Final

from kvtier.limiter.gate import ADMITTED, SHED, WOULD_SHED, Gate

LONGEST_SECONDS: Final = 30
SPREAD_SECONDS: Final = 15


def retry_after(*, wait: float, offered: float, rate: float, random: Callable[[], float]) -> int:
    """Whole seconds, from 1 to 30, after which a client that was shed may try again.

    ``wait`` is when the next request passes, in seconds. All who were shed at once would come back
    at once, so they are spread over as many seconds as ``offered`` is times ``rate`` (tokens/s
    both): then no more come back in a second than pass in one. ``random`` gives 0 to 1.
    """
    times = offered / rate if rate > 0 else SPREAD_SECONDS
    spread = min(max(times, 1.0), SPREAD_SECONDS)
    return min(LONGEST_SECONDS, max(1, math.ceil(wait + spread * random())))


def refusal(seconds: int) -> str:
    """The body of a 429, in the form that clients of the OpenAI API read."""
    return (
        '{"error":{"message":"The KV cache is cold and prefill is at its limit; try again in '
        f'{seconds} s","type":"overloaded_error","code":"kvtier_storm","param":null}}}}\n'
    )


def state_of(gate: Gate, *, now: float) -> dict[str, Any]:
    """One tier, as GET /state has it. Rates are of this replica alone, the limit is of all."""
    view, bounds = gate.view, gate.bounds
    storm = view.storm if view is not None else None
    since = storm.since if storm is not None else None
    why = view.limit.why if view is not None else "this replica knows nothing of the tier yet"
    if bounds.adopted:
        why = "a replica that ran when the storm began says so"
    return {
        "namespace": gate.namespace,
        "name": gate.name,
        "mode": "Enforce" if bounds.enforces else "Observe",
        "state": bounds.state,
        "cause": storm.cause.value if storm is not None and storm.cause is not None else None,
        "sinceSeconds": round(now - since, 1) if since is not None else None,
        "limitTokensPerSecond": _whole(bounds.limit),
        "shareTokensPerSecond": _whole(gate.bucket.rate if gate.bucket is not None else None),
        "hitShare": storm.hits.level if storm is not None else None,
        "hitSource": storm.hits.source or None if storm is not None else None,
        "hitLow": view.limit.hit_low if view is not None else None,
        "offeredTokensPerSecond": _whole(gate.meter.offered),
        "admittedTokensPerSecond": _whole(gate.passed[ADMITTED].rate),
        "shedTokensPerSecond": _whole(gate.passed[SHED].rate),
        "wouldShedTokensPerSecond": _whole(gate.passed[WOULD_SHED].rate),
        "queuedTokens": _whole(gate.queued(now)),
        "engines": view.engines if view is not None else None,
        "capacityTokensPerSecond": _whole(view.limit.capacity) if view is not None else None,
        "why": why,
    }


def _whole(figure: float | None) -> int | None:
    return None if figure is None else round(figure)
