"""The storm machine: from what is known at each moment to a state and a limit.

Open -> Storm (a rank lost, restarted or emptied; hits that collapse; planned work) -> Recovering
(hits return) -> Open. What sets it off is an event, seen once: a rank that stays lost while hits
are as ever does not hold a limit up.

Evidence outranks inference: hits that engines count reopen a tier whatever its ranks look like, and
requests that do not wait anywhere are no storm whatever the declared rate says.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from kvtier.admission import hits as hit_share
from kvtier.admission import rate as engine
from kvtier.admission.capacity import (
    WAITING_PROMPTS,
    held_share,
    limit_at,
    max_queued_tokens,
    prefill_capacity,
    storm_factor,
    zero_hit_capacity,
)
from kvtier.admission.memory import Cause, State, Storm, moved
from kvtier.admission.ranks import Look, all_answer, fill, look
from kvtier.admission.signals import Signals, Sizes

__all__ = ["Cause", "Limit", "State", "Storm", "advance", "limit"]

JUMP: Final = 300.0
"""Seconds between two looks beyond which the clock jumped, or the process stood still."""
STALE: Final = 30.0
"""Seconds after which a signal says nothing of now."""
LAPSE: Final = 900.0
"""Seconds after which nothing that is old limits anything: engines, a plan, a memory's refill."""
OFFERED_SECONDS: Final = 3.0
"""Time constant of the offered load: a second of Poisson arrivals is too few to act on."""
PEAK_SECONDS: Final = 3600.0
"""Time constant with which the peak of the offered load is forgotten."""
RISEN: Final = 0.1
"""By how much hits must be above their lowest in this storm to be returning."""
GONE: Final = 0.05
"""By how little they are above it when they are gone again."""
ROOM: Final = 1.05
"""By how much the limit must be above what is offered before it goes."""
AS_BEFORE: Final = 1.15
"""Share of misses, over the usual one, at which hits are as before."""
HOLD: Final = 15.0
"""Seconds for which there must be room before the limit goes."""
REFILLED: Final = 0.8
"""Share of what ranks held before at which they are full again, where no engine tells of hits."""
TOO_MUCH: Final = 1.05
"""Work over what engines can do from which it is too much: R is known to 5 %, and full engines that
keep up do exactly what they are asked."""
WAITING: Final = 1.0
"""Requests per engine that wait when a queue grows."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What may come in: prompt tokens/s, and prompt tokens that may wait in engines; None for no
    limit.

    In Recovering the share ``hit_low`` of those that wait will hit, so that ``max_queued`` is as
    many times what engines prefill in the target TTFT as ``tokens_per_second`` is the capacity.
    ``why`` is one sentence for people. ``capacity`` is the zero-hit capacity [tokens/s], 0 while
    engines are not known.
    """

    tokens_per_second: float | None
    max_queued: float | None
    why: str
    hit_low: float | None
    capacity: float


def advance(storm: Storm, *, now: float, signals: Signals, sizes: Sizes) -> Storm:
    """The machine one look later. ``now`` is of the clock that the signals' times are of.

    A clock that went back, or forward by more than five minutes, changes nothing but the times that
    are remembered. Without Ready engines nothing is judged, and ranks are compared with what they
    were while there were some.
    """
    if storm.looked is None:
        storm = replace(storm, looked=now, since=now)
    step = now - (now if storm.looked is None else storm.looked)
    if not 0 <= step <= JUMP:
        return moved(storm, by=step, now=now)
    storm = replace(_offered(storm, signals, step=step), looked=now)
    if not signals.engines:
        return replace(storm, calm=None)
    if _age(signals.engines_at, now) > LAPSE:
        return _open(storm, now=now) if storm.state is not State.OPEN else storm
    seen = look(storm.ranks, signals.ranks, now=now)
    storm = _counted(replace(storm, ranks=seen.known), signals, sizes, now=now)
    storm = _plan(storm, signals, now=now)
    if seen.blow is not None:
        return _strike(storm, Cause(seen.blow.value), rank=seen.rank, now=now)
    if storm.state is State.OPEN:
        return _judge_open(storm, signals, sizes, now=now)
    if storm.cause is Cause.PLANNED and _plan_holds(storm, now):
        # Hits are still what they were before the work: they say nothing of after.
        return replace(storm, struck=now, hits=hit_share.struck(storm.hits, low=0.0))
    if seen.unharmed and storm.cause is Cause.RANK_LOST:
        return _unharmed(storm, sizes, now=now)
    return _judge_storm(storm, seen, signals, sizes, now=now, step=step)


def limit(storm: Storm, *, now: float, signals: Signals, sizes: Sizes) -> Limit:
    """What may come in now. No limit in Open, without engines, or on signals that are too old."""
    rate = engine.engine_rate(storm.rate, sizes, now=now)
    engines = signals.engines or 0
    capacity = zero_hit_capacity(engines=engines, engine_rate=rate, utilization=sizes.utilization)
    prefill = prefill_capacity(engines=engines, engine_rate=rate)
    why = _no_limit(storm, signals, sizes, now=now)
    if why is not None:
        return Limit(None, None, why, storm.hit_low, capacity)
    low = storm.hit_low or 0.0
    floor = sizes.floor * storm.peak
    held = _held(storm, sizes, hit=low, rate=rate)
    allowed = limit_at(capacity=capacity, hit_low=low, floor=floor, held=held)
    target = sizes.target_ttft
    if target is None:
        target = WAITING_PROMPTS * sizes.mean_prompt / rate
    queued = max_queued_tokens(target_ttft=target, prefill=prefill)
    if storm.state is State.RECOVERING:
        # In Storm nothing that waits is taken to hit: the share of hits is that of a moment ago.
        queued *= storm_factor(low)
    return Limit(allowed, queued, _why(storm, engines, rate, low, sizes), low, capacity)


def _no_limit(storm: Storm, signals: Signals, sizes: Sizes, *, now: float) -> str | None:
    """Why there is no limit, None if there is one."""
    if storm.state is State.OPEN:
        return "Hits are as they should be."
    if signals.engines is None:
        return "How many engines are Ready is not known."
    if not signals.engines:
        return "No engine is Ready."
    age = _age(signals.engines_at, now)
    if age > LAPSE:
        return f"Engines were last counted {age:.0f} s ago."
    if not all_answer(signals.ranks, wanted=sizes.ranks):
        return None
    if age > STALE:
        return f"All ranks answer, and engines were last counted {age:.0f} s ago."
    if signals.counts_tokens:
        told = max(storm.hits.at or -math.inf, storm.struck or -math.inf)
        if now - told > STALE:
            return f"All ranks answer, and engines last told of hits {now - told:.0f} s ago."
    return None


def _held(storm: Storm, sizes: Sizes, *, hit: float, rate: float) -> float:
    """What hits hold GPUs for, over the prefill of all prompts.

    Fewer hits mean fewer prompts that hit rather than shorter hits: of the usual share all do.
    """
    usual = hit_share.usual(storm.hits, expected=sizes.expected_hit)
    prompts = min(1.0, hit / usual) if usual else float(hit > 0)
    each = held_share(held=sizes.held, engine_rate=rate, mean_prompt=sizes.mean_prompt)
    return prompts * each


def _why(storm: Storm, engines: int, rate: float, low: float, sizes: Sizes) -> str:
    what = {
        Cause.RANK_LOST: f"Rank {storm.rank} was lost",
        Cause.RANK_RESTARTED: f"Rank {storm.rank} restarted empty",
        Cause.RANK_EMPTIED: f"Rank {storm.rank} was emptied",
        Cause.HITS_COLLAPSED: "Too few prompts hit",
        Cause.PLANNED: "Planned work is announced or under way",
        None: "The tier is cold",
    }[storm.cause]
    return (
        f"{what}: {engines} engines at {rate:,.0f} tokens/s, {sizes.utilization:.0%} of it, with"
        f" {low:.0%} of tokens hitting."
    )


def _age(at: float | None, now: float) -> float:
    return 0.0 if at is None else max(0.0, now - at)


def _offered(storm: Storm, signals: Signals, *, step: float) -> Storm:
    """Follow what is offered. Who sees no requests takes what engines were given."""
    rate = signals.offered
    if rate is None and signals.tokens is not None and signals.tokens.seconds > 0:
        rate = signals.tokens.prompt / signals.tokens.seconds
    if rate is None or rate < 0 or not math.isfinite(rate):
        return storm
    before = rate if storm.offered is None else storm.offered
    smooth = before + (rate - before) * -math.expm1(-step / OFFERED_SECONDS)
    peak = max(storm.peak * math.exp(-step / PEAK_SECONDS), smooth)
    return replace(storm, offered=smooth, peak=peak)


def _counted(storm: Storm, signals: Signals, sizes: Sizes, *, now: float) -> Storm:
    tokens = signals.tokens
    if tokens is None or not signals.counts_tokens:
        return storm
    hits = hit_share.count(
        storm.hits, tokens, now=now, mean_prompt=sizes.mean_prompt, since=storm.struck
    )
    rate = engine.observe(storm.rate, tokens, now=now, mean_prompt=sizes.mean_prompt)
    return replace(storm, hits=hits, rate=rate)


def _plan(storm: Storm, signals: Signals, *, now: float) -> Storm:
    """Planned work begins a storm, and holds it for 15 minutes at most: operators die too."""
    if not signals.planned:
        return replace(storm, planned=None)
    if storm.planned is None:
        return _strike(replace(storm, planned=now), Cause.PLANNED, rank=None, now=now)
    return storm


def _plan_holds(storm: Storm, now: float) -> bool:
    return storm.planned is not None and now - storm.planned <= LAPSE


def _strike(storm: Storm, cause: Cause, *, rank: int | None, now: float, low: float = 0.0) -> Storm:
    """A blow fell: a storm, from whatever state, that knows of no hits."""
    if _plan_holds(storm, now):
        cause = Cause.PLANNED
    return replace(
        storm,
        state=State.STORM,
        cause=cause,
        rank=rank,
        since=storm.since if storm.state is State.STORM else now,
        struck=now,
        calm=None,
        lowest=low,
        hits=hit_share.struck(storm.hits, low=low),
    )


def _unharmed(storm: Storm, sizes: Sizes, *, now: float) -> Storm:
    """The lost rank is back with all that it held: hits are what they were, until counted."""
    known = hit_share.usual(storm.hits, expected=sizes.expected_hit)
    hits = hit_share.struck(storm.hits, low=max(storm.hit_low or 0.0, known or 0.0))
    return replace(_into(storm, State.RECOVERING, now=now), struck=now, hits=hits)


def _judge_open(storm: Storm, signals: Signals, sizes: Sizes, *, now: float) -> Storm:
    hits = storm.hits
    if hits.last is None or not signals.counts_tokens or _age(hits.at, now) > STALE:
        return storm
    fallen = _collapsed(storm, signals, sizes, now=now)
    if fallen is not None:
        return _strike(storm, Cause.HITS_COLLAPSED, rank=None, now=now, low=fallen)
    return replace(storm, hits=hit_share.learn(hits))


def _collapsed(storm: Storm, signals: Signals, sizes: Sizes, *, now: float) -> float | None:
    """The share of hits that is left, if it is a collapse: fewer than there were, more work than
    engines can do, and a queue where one can be seen."""
    wanted = hit_share.wanted(storm.hits, expected=sizes.expected_hit)
    # A tier of which nothing else is known and that hits is as it should be, for all that is known.
    if wanted is None:
        cold = storm.hits.last is not None and storm.hits.last < hit_share.WARM
        fallen = storm.hits.last if cold else None
    else:
        fallen = hit_share.fallen(storm.hits, below=wanted)
    if fallen is None or not storm.offered:
        return None
    engines, waiting = signals.engines or 0, storm.rate.waiting
    rate = engine.engine_rate(storm.rate, sizes, now=now)
    prefill = prefill_capacity(engines=engines, engine_rate=rate)
    work = 1 - fallen + _held(storm, sizes, hit=fallen, rate=rate)
    too_much = storm.offered * work >= TOO_MUCH * prefill
    queues = waiting is None or waiting >= WAITING * engines
    return fallen if too_much and queues else None


def _judge_storm(
    storm: Storm, seen: Look, signals: Signals, sizes: Sizes, *, now: float, step: float
) -> Storm:
    if not signals.counts_tokens:
        return _by_ranks(storm, seen, signals, sizes, now=now)
    if signals.tokens is None or not storm.hits.windows or signals.tokens.prompt <= 0:
        # No traffic, no figures: nothing is learned, and nothing comes or goes.
        return storm
    low, allowed = storm.hit_low or 0.0, limit(storm, now=now, signals=signals, sizes=sizes)
    usual = hit_share.usual(storm.hits, expected=sizes.expected_hit)
    before = usual is not None and 1 - low <= AS_BEFORE * (1 - usual)
    room = (
        allowed.tokens_per_second is not None
        and storm.offered is not None
        and allowed.tokens_per_second >= ROOM * storm.offered
    )
    lowest = min(storm.lowest, low)
    storm = replace(storm, lowest=lowest, hits=hit_share.forget(storm.hits, seconds=step))
    risen, gone = low >= lowest + RISEN, low < lowest + GONE
    return _settle(storm, risen=risen, gone=gone, calm=room or before, now=now)


def _by_ranks(storm: Storm, seen: Look, signals: Signals, sizes: Sizes, *, now: float) -> Storm:
    """Without engines' figures: as memory refills, and 15 minutes at most."""
    if not all_answer(signals.ranks, wanted=sizes.ranks):
        if storm.state is State.RECOVERING:
            storm = _into(storm, State.STORM, now=now)
        return replace(storm, calm=None)
    share = fill(seen.known)
    low = share * (hit_share.usual(storm.hits, expected=sizes.expected_hit) or 0.0)
    storm = replace(storm, hits=replace(storm.hits, low=low))
    over = storm.struck is not None and now - storm.struck > LAPSE
    if over:
        return _open(storm, now=now)
    return _settle(storm, risen=True, gone=False, calm=share >= REFILLED, now=now)


def _settle(storm: Storm, *, risen: bool, gone: bool, calm: bool, now: float) -> Storm:
    """The next state on the way back. Between ``risen`` and ``gone`` it stays what it is."""
    if storm.state is State.STORM and (risen or calm):
        storm = _into(storm, State.RECOVERING, now=now)
    elif storm.state is State.RECOVERING and gone and not calm:
        storm = _into(storm, State.STORM, now=now)
    if not calm:
        return replace(storm, calm=None)
    if storm.calm is None:
        return replace(storm, calm=now)
    return _open(storm, now=now) if now - storm.calm >= HOLD else storm


def _into(storm: Storm, state: State, *, now: float) -> Storm:
    return replace(storm, state=state, since=now)


def _open(storm: Storm, *, now: float) -> Storm:
    return replace(_into(storm, State.OPEN, now=now), cause=None, rank=None, struck=None, calm=None)
