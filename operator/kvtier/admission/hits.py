"""The share of prompt tokens that the tier serves: windows with a minimum sample, and a low value
that falls at once and rises slowly.

Prompts hit or miss more or less as a whole, so a window of N prompts knows h to
sqrt(h (1 - h) / N) only. A fall that is within twice that is no fall.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from kvtier.admission.signals import TokenSignal

LEAST_PROMPTS: Final = 8.0
"""Prompts of mean length in a window: of fewer a share says nothing."""
LEAST_SECONDS: Final = 2.0
RISE_SECONDS: Final = 8.0
"""Time constant with which the low value follows hits that return."""
LEARN_SECONDS: Final = 300.0
"""Time constant of the usual share."""
LEVEL_SECONDS: Final = 20.0
"""Time constant of the level of late, which sees small falls that last."""
FORGET_SECONDS: Final = 7200.0
"""Time constant with which the best of it is forgotten: hits that go within an hour are a collapse,
those that go within a day are another workload."""
WARM: Final = 0.1
"""Share of hits from which a tier is warm, or was."""
SURE: Final = 2.0
"""Standard errors that make a fall one, while a limit is there already."""
COLLAPSED: Final = 4.0
"""Standard errors that make a fall a collapse: there are 43,200 windows of two seconds in a day."""
LEAST_WINDOWS: Final = 10
"""Windows of which the mean is known well enough to be the best that was."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What is known of hits. ``prompt``, ``hit`` (tokens) and ``seconds`` are of the open window.

    ``last`` is h of the last whole window and ``error`` its standard error, ``level`` and
    ``level_error`` the same of windows of late, which know small changes better. ``low`` is the
    share that limits count with, ``usual`` what it is when all is well and ``best`` the highest
    that this was (None: not known yet), ``windows`` how many are whole since the last blow,
    ``learned`` how many the usual share is of, ``fresh`` whether the last one is not in it yet,
    ``length`` its seconds; ``at`` is when tokens were last
    told, ``source`` the metric of the hits.
    """

    prompt: float = 0.0
    hit: float = 0.0
    seconds: float = 0.0
    last: float | None = None
    error: float = 1.0
    level: float | None = None
    level_error: float = 1.0
    low: float | None = None
    usual: float | None = None
    best: float | None = None
    windows: int = 0
    learned: int = 0
    fresh: bool = False
    length: float = 0.0
    at: float | None = None
    source: str = ""


def struck(hits: Hits, *, low: float) -> Hits:
    """After a blow: nothing counted before it says anything."""
    return replace(hits, prompt=0.0, hit=0.0, seconds=0.0, last=None, error=1.0, low=low, windows=0)


def count(
    hits: Hits, tokens: TokenSignal, *, now: float, mean_prompt: float, since: float | None
) -> Hits:
    """Add what engines counted, and close the window once it holds enough.

    ``since`` is when the last blow fell: what was counted over a time that began before it is
    left out.
    """
    hits = replace(hits, at=now, source=tokens.source)
    if tokens.prompt <= 0 or (since is not None and now - tokens.seconds < since):
        return hits
    prompt = hits.prompt + tokens.prompt
    # Counters of two metrics are read one after the other: never more hits than prompts.
    hit = min(hits.hit + max(tokens.hit, 0.0), prompt)
    seconds = hits.seconds + tokens.seconds
    prompts = prompt / mean_prompt
    if prompts < LEAST_PROMPTS or seconds < LEAST_SECONDS:
        return replace(hits, prompt=prompt, hit=hit, seconds=seconds)
    share = hit / prompt
    # One more hit and one more miss than there were: a window of hits alone is not sure either.
    smooth = (share * prompts + 1) / (prompts + 2)
    error = math.sqrt(smooth * (1 - smooth) / prompts)
    level = share if hits.level is None else hits.level
    # Of windows that are forgotten with a time constant as many count as fit into twice of it.
    counted = min(hits.windows + 1, max(1.0, 2 * LEVEL_SECONDS / seconds))
    return replace(
        hits,
        prompt=0.0,
        hit=0.0,
        seconds=0.0,
        last=share,
        error=error,
        level=_followed(level, share, seconds=seconds, constant=LEVEL_SECONDS),
        level_error=error / math.sqrt(counted),
        low=_low(hits.low, share=share, error=error, seconds=seconds),
        windows=hits.windows + 1,
        fresh=True,
        length=seconds,
    )


def learn(hits: Hits) -> Hits:
    """Put the last window into the usual share, while all is well: the mean, later one that
    forgets."""
    if hits.last is None or not hits.fresh:
        return hits
    usual, learned = hits.usual or 0.0, hits.learned + 1
    weight = max(1 / learned, -math.expm1(-hits.length / LEARN_SECONDS))
    usual += (hits.last - usual) * weight
    best = None
    if learned >= LEAST_WINDOWS:
        best = max(usual, _faded(hits.best or 0.0, seconds=hits.length))
    return replace(hits, usual=usual, best=best, learned=learned, fresh=False)


def forget(hits: Hits, *, seconds: float) -> Hits:
    """Forget the usual share while it is not there: no tier is held to it for ever."""
    usual = None if hits.usual is None else _faded(hits.usual, seconds=seconds)
    best = None if hits.best is None else _faded(hits.best, seconds=seconds)
    return replace(hits, usual=usual, best=best)


def usual(hits: Hits, *, expected: float | None) -> float | None:
    """h when all is well: as seen, else as declared; None where it was never warm."""
    return hits.usual if hits.usual is not None and hits.usual >= WARM else expected


def wanted(hits: Hits, *, expected: float | None) -> float | None:
    """What hits have to stay near to: the best that was seen or declared; None if nothing was."""
    known = [share for share in (hits.best, expected) if share is not None and share >= WARM]
    return max(known, default=None)


def fallen(hits: Hits, *, below: float) -> float | None:
    """The share of hits if it is surely less than ``below``: by one window or by all of late."""
    if hits.last is None or hits.level is None:
        return None
    window = hits.last + COLLAPSED * hits.error < below
    of_late = hits.level + COLLAPSED * hits.level_error < below
    return min(hits.last, hits.level) if window or of_late else None


def _faded(value: float, *, seconds: float) -> float:
    return value * math.exp(-seconds / FORGET_SECONDS)


def _low(low: float | None, *, share: float, error: float, seconds: float) -> float:
    if low is None or share < low - SURE * error:
        return share
    return _followed(low, share, seconds=seconds, constant=RISE_SECONDS)


def _followed(value: float, target: float, *, seconds: float, constant: float) -> float:
    return value + (target - value) * -math.expm1(-seconds / constant)
