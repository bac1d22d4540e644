"""From figures to a verdict and the sentence that a person reads.

The first that holds: Pays, PaysWhenLong, PaysUnderLoad, NeverPays. A link at or below break-even
pays under load at most, whatever else is unknown; beyond that, no verdict without a link and T0.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvtier.api import reasons
from kvtier.breakeven.assessment import Evidence, Lengths, LinkFigures, Verdict
from kvtier.breakeven.load import Load
from kvtier.breakeven.search import Wins
from kvtier.breakeven.words import age, digits, gigabits, gigabytes, seconds

_EVIDENCE: Final = {Evidence.PROBED: "measured", Evidence.OBSERVED: "seen by engines"}


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, the others that hold beside it, and what a person reads."""

    verdict: Verdict
    reason: str
    message: str
    also: tuple[Verdict, ...] = ()


def judge(
    *,
    break_even: float,
    link: LinkFigures | None,
    missing: str | None,
    comparison: str,
    t0_seconds: float | None,
    wins: Wins | None,
    lengths: Lengths,
    gain_seconds: float | None,
    share_won: float | None,
    hopeless: bool,
    load: Load | None,
    requests_per_second: float | None,
) -> Judged:
    """The first verdict that holds.

    With declared hit lengths a tier pays when fetching every hit gains time on average; without,
    when the fetch wins at every length that is judged. ``gain_seconds`` is that average and
    ``share_won`` the share of ``lengths`` that win, of each of which one is None when not known.
    ``hopeless``: no hit wins whatever the link. ``missing`` is the level whose link it takes where
    there is none, None if that is not known.
    """
    if link is None:
        wanted = (
            "no link is known: declare one in placement.links"
            if missing is None
            else f"hits cross the {missing} level, and neither its link nor a farther one is known:"
            f" declare one for {missing} in placement.links"
        )
        return Judged(
            Verdict.UNKNOWN,
            reasons.LINK_NOT_DECLARED,
            f"Break-even is {gigabits(break_even)}, but {wanted}.",
        )
    short = link.bytes_per_second <= break_even
    under_load = load is not None and load.pays_under_load
    queues = _queues(load, declared=requests_per_second)
    if short or (wins is not None and math.isinf(wins.least)):
        if under_load:
            return Judged(
                Verdict.PAYS_UNDER_LOAD,
                Verdict.PAYS_UNDER_LOAD.value,
                f"On an idle engine no hit is faster than computing it again, but {queues}. "
                f"{comparison}",
            )
        if link.lower_bound and not hopeless:
            return Judged(
                Verdict.UNKNOWN,
                reasons.LOWER_BOUND_ONLY,
                "Whoever measured the link was itself the limit, so the link may be faster. "
                f"{comparison}",
            )
        return Judged(
            Verdict.NEVER_PAYS,
            reasons.BELOW_BREAK_EVEN,
            f"{_never(short=short, t0_seconds=t0_seconds)} {comparison}",
        )
    if t0_seconds is None or wins is None or share_won is None:
        return Judged(
            Verdict.UNKNOWN,
            reasons.T0_NOT_DECLARED,
            "It may pay for long hits, but the fixed time of a hit is not known: set "
            f"pool.hitLatency and pool.hitEngineTime. {comparison}",
        )
    if share_won == 1 if gain_seconds is None else gain_seconds > 0:
        what = _pays(lengths, gain_seconds=gain_seconds, share_won=share_won)
        if share_won == 1:
            return Judged(Verdict.PAYS, Verdict.PAYS.value, f"{what} {comparison}")
        what += f" Those {wins.outside()} are not."
        return Judged(
            Verdict.PAYS, Verdict.PAYS.value, f"{what} {comparison}", also=(Verdict.PAYS_WHEN_LONG,)
        )
    share = _share(lengths, wins, gain_seconds=gain_seconds, share_won=share_won)
    message = (
        f"Only hits of {wins.inside()} are faster than computing them again: {share}. {comparison}"
    )
    if not under_load:
        return Judged(Verdict.PAYS_WHEN_LONG, Verdict.PAYS_WHEN_LONG.value, message)
    return Judged(
        Verdict.PAYS_WHEN_LONG,
        Verdict.PAYS_WHEN_LONG.value,
        f"{message} PaysUnderLoad holds too: {queues}.",
        also=(Verdict.PAYS_UNDER_LOAD,),
    )


def _never(*, short: bool, t0_seconds: float | None) -> str:
    if short or t0_seconds is None:
        return "A hit of any length is slower than computing it again."
    return (
        "No hit of any length that can be declared is faster than computing it again: it costs "
        f"{seconds(t0_seconds)} before its first byte."
    )


def _queues(load: Load | None, *, declared: float | None) -> str:
    """From which request rate on the shorter queue makes up for the slower hit, and up to which."""
    if load is None or load.threshold is None:
        return ""
    full = load.full_at(declared)
    known = "" if full is None else f"; the link is full at {digits(full)}"
    if declared is not None:
        known += f"; workload.requestsPerSecond is {digits(declared)}"
    return (
        f"from {digits(load.threshold)} requests/s of one engine on, prefills queue for longer "
        f"than a hit loses (hit rate {digits(load.hit_rate)}{known})"
    )


def compared(
    link: LinkFigures,
    *,
    break_even: float,
    ranks: int,
    age_seconds: float | None,
    observed: float | None = None,
) -> str:
    """What the link gives against what break-even needs, with where that is known from.

    ``observed`` is the R [tokens/s] that engines show and break-even is of, None if it is declared.
    """
    rate = "" if observed is None else f" at the {digits(observed)} tokens/s that engines show"
    if link.evidence is Evidence.DECLARED:
        return (
            f"The {link.domain} link gives {gigabits(link.bytes_per_second)}, break-even is "
            f"{gigabits(break_even)}{rate}."
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
        f"It needs {gigabytes(break_even)}{rate}, {source} gives{least} "
        f"{gigabytes(link.bytes_per_second)}, {_EVIDENCE[link.evidence]}{when}{where}."
    )


def _pays(lengths: Lengths, *, gain_seconds: float | None, share_won: float) -> str:
    if gain_seconds is None:
        return f"A hit of every length in {lengths.source} is faster than computing it again."
    return (
        f"Over {lengths.source} a hit is {seconds(gain_seconds)} faster on average than computing "
        f"it again; {digits(share_won * 100)} % of hits are faster."
    )


def _share(lengths: Lengths, wins: Wins, *, gain_seconds: float | None, share_won: float) -> str:
    such = "that long" if math.isinf(wins.most) else "among them"
    none = f"none of the lengths in {lengths.source} is {such}"
    if gain_seconds is None:
        won = round(share_won * len(lengths.tokens))
        some = f"{won} of the {len(lengths.tokens)} lengths in {lengths.source}"
        return some if share_won else none
    some = f"{digits(share_won * 100)} % of {lengths.source}"
    return (
        f"{some if share_won else none}, and fetching every hit would cost "
        f"{seconds(-gain_seconds)} more on average"
    )
