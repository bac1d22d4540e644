"""What the link decides: bandwidth, round trip, and how hits spread over the ranks."""

import math
from typing import Final

from kvtier.api import reasons
from kvtier.api.types import Striping
from kvtier.breakeven.imbalance import expected_imbalance
from kvtier.breakeven.words import counted, digits, seconds
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding, Severity

MOST_UNEVEN: Final = 1.5
"""Max/mean of the chunks per rank from which a third of the link is lost."""


def no_prompt_long_enough(case: Case) -> Finding | None:
    """T0 alone takes as long as the prefill of every length that is declared, on any link.

    Unless the declared load makes up for it: then the GPU's shorter queue is what the tier is for.
    """
    floor, longest, t0 = case.assessment.floor_hit, case.longest_prompt, case.assessment.t0_seconds
    if (
        floor is None
        or t0 is None
        or not (math.isinf(floor) if longest is None else floor > longest)
    ):
        return None
    declared = case.requests_per_second
    load = case.assessment.load or case.unlimited
    threshold = None if load is None else load.threshold
    free = None if case.unlimited is None else case.unlimited.threshold
    needed = (
        "is longer than a prefill of any length that can be declared"
        if longest is None
        else f"is longer than a prefill of {longest:,} tokens, the longest length declared"
        if math.isinf(floor)
        else f"takes prompts of {floor:,.0f} tokens to make up for, and the longest length"
        f" declared is {longest:,}"
    )
    message = f"T0 of {seconds(t0)} {needed}: on no link is a hit faster on an idle engine."
    if threshold is not None:
        known = "none are declared" if declared is None else f"{digits(declared)} are declared"
        full = None if load is None else load.full_at(declared)
        known += "" if full is None else f", and the link is full at {digits(full)}"
        message += (
            f" From {digits(threshold)} requests/s of one engine on, the shorter queue makes up for"
            f" it; in workload.requestsPerSecond {known}."
        )
    busy = declared is not None and free is not None and declared >= free
    pays = declared is not None and threshold is not None and declared >= threshold
    pays = pays and not case.assessment.link_full
    return Finding(
        reason=reasons.NO_PROMPT_LONG_ENOUGH,
        message=message,
        severity=Severity.WARNING if pays else Severity.ERROR,
        blocks=not busy,
    )


def below_break_even(case: Case) -> Finding | None:
    """The link gives no more than B*. A lower bound of it proves nothing.

    A warning where the declared load makes up for it.
    """
    found = case.assessment
    if found.link is None or found.link.lower_bound or found.ratio is None or found.ratio > 1:
        return None
    return Finding(
        reason=reasons.BELOW_BREAK_EVEN,
        message=f"{found.comparison} That is {digits(found.ratio)} x break-even: no hit is faster"
        " on an idle engine.",
        severity=Severity.WARNING if found.also_under_load and found.loaded else Severity.ERROR,
    )


def no_hit_long_enough(case: Case) -> Finding | None:
    """Above B*, but every length that is declared is below the minimum hit.

    Or, where R rises with length, above the longest hit that wins.
    """
    found = case.assessment
    wins = found.wins
    if not _judgeable(case) or wins is None or no_prompt_long_enough(case):
        return None
    shortest, longest = min(found.lengths.tokens), case.longest_hit or max(found.lengths.tokens)
    too_short, too_long = wins.least > longest, wins.most < shortest and not wins.again
    # The standard lengths are nobody's: none of them being long enough says nothing.
    if not (too_short or too_long) or not (case.lengths_declared or math.isinf(wins.least)):
        return None
    faster = (
        "no hit of any length is faster"
        if math.isinf(wins.least)
        else f"hits are faster from {wins.least:,.0f} tokens on"
        if math.isinf(wins.most)
        else f"hits of {wins.inside()} are faster"
    )
    end = f"longest in {found.lengths.source} is {longest:,}"
    if too_long:
        end = f"shortest in {found.lengths.source} is {shortest:,}"
    return Finding(
        reason=reasons.NO_HIT_LONG_ENOUGH,
        message=f"{found.comparison} With a T0 of {seconds(found.t0_seconds or 0)} {faster}, and"
        f" the {end}.",
        severity=Severity.WARNING if found.loaded else Severity.ERROR,
    )


def hits_lose_on_average(case: Case) -> Finding | None:
    """Some declared hits win, but fetching every one costs time."""
    found = case.assessment
    gain, share = found.gain_seconds, found.share_won
    if not _judgeable(case) or gain is None or share is None or gain > 0:
        return None
    if found.loaded or no_hit_long_enough(case) or no_prompt_long_enough(case):
        # The load makes up for it; or none wins, and another finding says so.
        return None
    return Finding(
        reason=reasons.HITS_LOSE_ON_AVERAGE,
        message=f"{digits(share * 100)} % of {found.lengths.source} are faster than computing them"
        f" again, but fetching every hit costs {seconds(-gain)} more on average.",
    )


def round_trip_too_long(case: Case) -> Finding | None:
    """Hits below rtt x R: the round trip alone takes as long as the prefill."""
    link = case.assessment.link
    if link is None:
        return None
    lengths = case.assessment.lengths.tokens if case.lengths_declared else ()
    tried = lengths or (case.spec.pool.chunk_tokens,)
    lost = [tokens for tokens in tried if tokens <= link.round_trip_seconds * case.rate(tokens)]
    if not lost:
        return None
    shortest = min(lost)
    which = (
        f"{digits(100 * len(lost) / len(tried))} % of {case.assessment.lengths.source}"
        if lengths
        else f"hits of one chunk ({shortest:,} tokens)"
    )
    return Finding(
        reason=reasons.ROUND_TRIP_TOO_LONG,
        message=f"A round trip of {seconds(link.round_trip_seconds)} on the {link.domain} link is"
        f" as long as a prefill of {digits(link.round_trip_seconds * case.rate(shortest))} tokens:"
        f" {which} lose at any bandwidth.",
        severity=Severity.ERROR if lengths and len(lost) == len(tried) else Severity.WARNING,
    )


def chunks_uneven(case: Case) -> Finding | None:
    """``Hash`` leaves a hit waiting for the rank that got most of its chunks."""
    pool = case.spec.pool
    if pool.striping is not Striping.HASH or not case.lengths_declared:
        return None
    lengths = case.assessment.lengths.tokens
    mean = sum(lengths) / len(lengths)
    chunks = math.ceil(mean / pool.chunk_tokens)
    uneven = expected_imbalance(chunks, pool.ranks)
    if uneven <= MOST_UNEVEN:
        return None
    even = case.spec.model.layout.gqa is not None and pool.parallelism.pipeline == 1
    way_out = "striping Shard is even" if even else "smaller pool.chunkTokens are more even"
    return Finding(
        reason=reasons.CHUNKS_UNEVEN,
        message=f"A mean hit has {counted(chunks, 'chunk')}, and a hash spreads them so that it"
        f" gets {digits(100 / uneven)} % of the link; {way_out} (for a new tier).",
    )


def _judgeable(case: Case) -> bool:
    found = case.assessment
    if found.link is None or found.link.lower_bound:
        return False
    return found.ratio is not None and found.ratio > 1
