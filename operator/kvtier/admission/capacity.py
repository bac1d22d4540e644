"""What engines can take while nothing hits, and what may be let in at a share of hits.

    P = engines x R                     prompt tokens/s that all engines prefill
    zero-hit capacity = utilization x P
    limit(h) = zero-hit capacity / (1 - h)

Of what is let in at the limit the share 1 - h is prefilled, so the GPUs' queue has
rho = utilization, whatever h is. Where hits hold GPUs too (hitEngineTime), that is part of the
work. The formulas of the two queues are those of ``kvtier.breakeven.queueing``.
"""

import math
from typing import Final

from kvtier.admission.signals import Sizes
from kvtier.api.scalars import parse_duration
from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven import rates
from kvtier.breakeven.checks import not_negative, positive, share
from kvtier.breakeven.load import hit_rate, mean_tokens, prefill_points, requests
from kvtier.breakeven.queueing import gpu_seconds

LEAST_MISS: Final = 0.02
"""The least share of misses that a limit counts with. At h = 0.98 one point of error in h is half
of the work, so that no limit above 50 times the capacity means anything."""
DEFAULT_PROMPT: Final = 8192.0
"""Tokens of a prompt where a tier declares neither promptTokens nor hitTokens: in the middle of
the standard lengths that a verdict is about."""

WAITING_PROMPTS: Final = 2.0
"""Prompts of mean length that may wait in each engine where no targetTTFT is declared: one is there
when the engine is done with its last, the other when that one was short."""


def prefill_capacity(*, engines: int, engine_rate: float) -> float:
    """P: tokens/s that ``engines`` prefill, each at ``engine_rate`` tokens/s.

    Raises ValueError for a number that is negative or a rate that is not positive.
    """
    not_negative(engines=engines)
    positive(engine_rate=engine_rate)
    return engines * engine_rate


def zero_hit_capacity(*, engines: int, engine_rate: float, utilization: float) -> float:
    """utilization x P: tokens/s that are let in while nothing hits.

    ``utilization`` is a share above zero. Raises ValueError for figures out of range.
    """
    positive(utilization=utilization)
    share(utilization=utilization)
    return utilization * prefill_capacity(engines=engines, engine_rate=engine_rate)


def storm_factor(hit_share: float) -> float:
    """1 / (1 - h): how many times the prefill work of now a cold tier means; 50 at most.

    Raises ValueError when ``hit_share`` is no share.
    """
    share(hit_share=hit_share)
    return 1 / max(1 - hit_share, LEAST_MISS)


def limit_at(*, capacity: float, hit_low: float, floor: float = 0.0, held: float = 0.0) -> float:
    """Prompt tokens/s that may come in: capacity / (1 - h + held), never below ``floor``.

    ``capacity`` is the zero-hit capacity, ``hit_low`` a share of hits that is surely there, and
    ``held`` what hits hold GPUs for, over the prefill of all prompts (``held_share`` where every
    prompt hits). Raises ValueError for figures out of range.
    """
    not_negative(capacity=capacity, floor=floor, held=held)
    share(hit_low=hit_low)
    return max(capacity / max(1 - hit_low + held, LEAST_MISS), floor)


def held_share(*, held: float, engine_rate: float, mean_prompt: float) -> float:
    """hitEngineTime x R / n: what a hit costs a GPU whatever its length, over a whole prefill.

    Raises ValueError for figures out of range.
    """
    not_negative(held=held)
    positive(engine_rate=engine_rate, mean_prompt=mean_prompt)
    return held * engine_rate / mean_prompt


def max_queued_tokens(*, target_ttft: float, prefill: float) -> float:
    """Tokens that may wait in engines: what they prefill in ``target_ttft`` seconds.

    ``prefill`` is P [tokens/s]. Raises ValueError for figures out of range.
    """
    not_negative(target_ttft=target_ttft, prefill=prefill)
    return target_ttft * prefill


def required_engines(*, offered: float, engine_rate: float, utilization: float) -> int:
    """The fewest engines that take all ``offered`` tokens/s while nothing hits.

    Raises ValueError for figures out of range.
    """
    not_negative(offered=offered)
    one = zero_hit_capacity(engines=1, engine_rate=engine_rate, utilization=utilization)
    # A hair above a whole number is the rounding of the product, not another engine.
    return math.ceil(offered / one - 1e-9)


def gpu_rho(
    *,
    offered: float,
    engines: int,
    engine_rate: float,
    hit_share: float,
    mean_prompt: float,
    held: float = 0.0,
) -> float:
    """The share of time in which a GPU is busy; from 1 on its queue only grows.

    rho = lambda ((1 - h) n / R + held), with lambda requests/s of one engine: ``offered`` tokens/s
    spread evenly over ``engines``, ``mean_prompt`` tokens each. ``held`` are the seconds for which
    a hit holds the GPU (pool.hitEngineTime). Infinite without engines where anything is offered.
    Raises ValueError for figures out of range.
    """
    not_negative(offered=offered, engines=engines)
    positive(engine_rate=engine_rate, mean_prompt=mean_prompt)
    if not engines:
        return math.inf if offered else 0.0
    seconds = gpu_seconds(hit_rate=hit_share, recompute=mean_prompt / engine_rate, held=held)
    return offered / mean_prompt / engines * seconds


def link_rho(
    *,
    offered: float,
    engines: int,
    hit_share: float,
    bytes_per_token: float,
    bandwidth: float,
) -> float:
    """The share of time in which an engine's link is busy, of the busier way.

    Hits are read and misses written, one way each, so a cold tier fills the way that a warm one
    leaves empty. ``bandwidth`` is that of one engine's link [bytes/s]. Infinite without engines
    where anything is offered. Raises ValueError for figures out of range.
    """
    not_negative(offered=offered, engines=engines)
    positive(bytes_per_token=bytes_per_token, bandwidth=bandwidth)
    share(hit_share=hit_share)
    if not engines:
        return math.inf if offered else 0.0
    return offered * bytes_per_token * max(hit_share, 1 - hit_share) / (engines * bandwidth)


def mean_prompt_tokens(spec: KVCacheTierSpec) -> float:
    """Mean tokens of a prompt: as declared, else by hits and their share, else 8,192."""
    if spec.workload.prompt_tokens:
        return mean_tokens(spec.workload.prompt_tokens)
    asked = requests(spec)
    if not asked:
        return DEFAULT_PROMPT
    return math.fsum(request.prompt for request in asked) / len(asked)


def expected_hit(spec: KVCacheTierSpec) -> float | None:
    """The share of prompt tokens that should hit; None where nothing declared says so."""
    workload = spec.workload
    if workload.hit_rate is None and not (workload.hit_tokens and workload.prompt_tokens):
        return None
    return hit_rate(spec)


def sizes_of(
    spec: KVCacheTierSpec, *, engine_rate: float | None = None, hit_share: float | None = None
) -> Sizes:
    """A tier's figures for the storm machine.

    ``engine_rate`` is R as the tier's status has it [tokens/s]; without it the declared one counts,
    at the mean prompt. ``hit_share`` is the share of hits that was measured; without it the
    declared one counts. Raises ValueError for a rate that is not positive or a share that is none.
    """
    mean = mean_prompt_tokens(spec)
    rate = rates.prefill_rate(prefill_points(spec), mean) if engine_rate is None else engine_rate
    positive(engine_rate=rate)
    if hit_share is not None:
        share(hit_share=hit_share)
    target, held = spec.workload.target_ttft, spec.pool.hit_engine_time
    return Sizes(
        ranks=spec.pool.ranks,
        engine_rate=rate,
        utilization=float(spec.admission.utilization),
        mean_prompt=mean,
        target_ttft=None if target is None else parse_duration(target),
        floor=float(spec.admission.floor),
        expected_hit=expected_hit(spec) if hit_share is None else hit_share,
        held=0.0 if held is None else parse_duration(held),
    )
