"""From figures to a verdict and the sentence that a person reads.

The first that holds: Pays, PaysWhenLong, NeverPays. A link at or below break-even never pays,
whatever else is unknown; beyond that, no verdict without a link and T0.
"""

import math
from typing import Final

from kvtier.api import reasons
from kvtier.breakeven.assessment import Evidence, Lengths, LinkFigures, Verdict
from kvtier.breakeven.words import age, digits, gigabits, gigabytes, seconds

_EVIDENCE: Final = {Evidence.PROBED: "measured", Evidence.OBSERVED: "seen by engines"}


def judge(
    *,
    break_even: float,
    link: LinkFigures | None,
    link_age: float | None,
    ranks: int,
    t0_seconds: float | None,
    minimum_hit: float | None,
    lengths: Lengths,
    gain_seconds: float | None,
    share_won: float | None,
) -> tuple[Verdict, str, str]:
    """(verdict, reason, message).

    With declared hit lengths a tier pays when fetching every hit gains time on average; without,
    when the fetch wins at every length that is judged. ``gain_seconds`` is that average and
    ``share_won`` the share of ``lengths`` that win, of each of which one is None when not known.
    """
    if link is None:
        return (
            Verdict.UNKNOWN,
            reasons.LINK_NOT_DECLARED,
            f"Break-even is {gigabits(break_even)}, but no link is known: declare one in "
            "placement.links.",
        )
    compared = _compared(link, break_even=break_even, ranks=ranks, age_seconds=link_age)
    short = link.bytes_per_second <= break_even
    if link.lower_bound and (short or (minimum_hit is not None and math.isinf(minimum_hit))):
        return (
            Verdict.UNKNOWN,
            reasons.LOWER_BOUND_ONLY,
            "Whoever measured the link was itself the limit, so the link may be faster. "
            f"{compared}",
        )
    if short:
        return (
            Verdict.NEVER_PAYS,
            reasons.BELOW_BREAK_EVEN,
            f"A hit of any length is slower than computing it again. {compared}",
        )
    if t0_seconds is None or minimum_hit is None or share_won is None:
        return (
            Verdict.UNKNOWN,
            reasons.T0_NOT_DECLARED,
            "It may pay for long hits, but the fixed time of a hit is not known: set "
            f"pool.hitLatency and pool.hitEngineTime. {compared}",
        )
    if math.isinf(minimum_hit):
        return (
            Verdict.NEVER_PAYS,
            reasons.BELOW_BREAK_EVEN,
            "No hit of any length that can be declared is faster than computing it again: it "
            f"costs {seconds(t0_seconds)} before its first byte. {compared}",
        )
    if share_won == 1 if gain_seconds is None else gain_seconds > 0:
        what = _pays(lengths, gain_seconds=gain_seconds, share_won=share_won)
        return Verdict.PAYS, Verdict.PAYS.value, f"{what} {compared}"
    share = _share(lengths, gain_seconds=gain_seconds, share_won=share_won)
    return (
        Verdict.PAYS_WHEN_LONG,
        Verdict.PAYS_WHEN_LONG.value,
        f"Only hits of {minimum_hit:,.0f} tokens and more are faster than computing them again: "
        f"{share}. {compared}",
    )


def _compared(
    link: LinkFigures, *, break_even: float, ranks: int, age_seconds: float | None
) -> str:
    if link.evidence is Evidence.DECLARED:
        return (
            f"The {link.domain} link gives {gigabits(link.bytes_per_second)}, break-even is "
            f"{gigabits(break_even)}."
        )
    source = f"the {link.domain} link"
    if link.slowest_rank_bytes_per_second is not None:
        source = f"slowest rank x {ranks}"
    least = " at least" if link.lower_bound else ""
    if age_seconds is not None:
        when = f" {age(age_seconds)} ago"
    else:
        when = "" if link.at is None else f" at {link.at}"
    where = "" if link.node is None else f" from {link.node}"
    return (
        f"It needs {gigabytes(break_even)}, {source} gives{least} "
        f"{gigabytes(link.bytes_per_second)}, {_EVIDENCE[link.evidence]}{when}{where}."
    )


def _pays(lengths: Lengths, *, gain_seconds: float | None, share_won: float) -> str:
    if gain_seconds is None:
        return f"A hit of every length in {lengths.source} is faster than computing it again."
    return (
        f"Over {lengths.source} a hit is {seconds(gain_seconds)} faster on average than computing "
        f"it again; {digits(share_won * 100)} % of hits are faster."
    )


def _share(lengths: Lengths, *, gain_seconds: float | None, share_won: float) -> str:
    none = f"none of the lengths in {lengths.source} is that long"
    if gain_seconds is None:
        won = round(share_won * len(lengths.tokens))
        some = f"{won} of the {len(lengths.tokens)} lengths in {lengths.source}"
        return some if share_won else none
    some = f"{digits(share_won * 100)} % of {lengths.source}"
    return (
        f"{some if share_won else none}, and fetching every hit would cost "
        f"{seconds(-gain_seconds)} more on average"
    )
