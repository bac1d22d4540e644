"""What the load decides: queues that grow without end, and engines that share ranks."""

from collections.abc import Callable
from typing import Final

from kvtier.api import reasons
from kvtier.breakeven.assessment import Evidence
from kvtier.breakeven.load import Traffic
from kvtier.breakeven.words import counted, digits, gigabits, gigabytes, seconds
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding, Severity

BUSY: Final = 0.8
"""Utilisation from which a queue is worth a warning: waits are four service times and more."""
_SPLIT: Final = "split the pool into several tiers, each with nodes of its own"


def gpu_queue_unstable(case: Case) -> Finding | None:
    """rho_gpu = rate x ((1 - h) n/R + hitEngineTime): from 1 on the queue only grows."""
    rate = case.requests_per_second
    load = case.unlimited if rate is not None else None
    if load is None or rate is None:
        return None
    rho = load.gpu.utilisation(rate)
    if rho < BUSY:
        return None
    return Finding(
        reason=reasons.GPU_QUEUE_UNSTABLE,
        message=f"At {digits(rate)} requests/s of one engine, each of which keeps the GPU busy for"
        f" {seconds(load.gpu.mean)} (hit rate {digits(load.hit_rate)}), {_busy('GPU', rho)}."
        f" Without the tier it would be {digits(load.prefill.utilisation(rate))}. Run more engines,"
        " so that each gets fewer requests.",
        severity=_severity(rho),
    )


def link_queue_unstable(case: Case) -> Finding | None:
    """One engine's own link: hits come in over it, misses go out."""
    link, rate, moved = case.assessment.link, case.requests_per_second, case.moved
    if link is None or rate is None or moved is None:
        return None
    demand = moved.times(rate)
    way = "into" if moved.read >= moved.written else "out of"
    rho = demand.busier / link.bytes_per_second
    if rho < BUSY or link.lower_bound:
        return None
    return Finding(
        reason=reasons.LINK_QUEUE_UNSTABLE,
        message=f"One engine at {digits(rate)} requests/s {_both(demand, gigabits)} over a"
        f" {link.domain} link of {gigabits(link.bytes_per_second)} each way:"
        f" {_busy(f'way {way} its node', rho)}. Run more engines, so that each gets fewer"
        " requests, or use a faster link.",
        severity=_severity(rho),
    )


def ranks_contended(case: Case) -> Finding | None:
    """All engines together, on the node that holds most ranks.

    By a declared link, taken as what any node has: a node's k ranks share it once, and serve k/W
    of the demand; hits leave it, misses come in. Where nobody knows how many share a node, one
    each: the best case. A measured bandwidth is what one engine got from all ranks: they give at
    least that, so more is no error.
    """
    link, rate, moved = case.assessment.link, case.requests_per_second, case.moved
    if link is None or rate is None or moved is None or link.lower_bound:
        return None
    demand = moved.times(case.engines * rate)
    asked = f"{counted(case.engines, 'engine')} at {digits(rate)} requests/s:"
    if link.evidence is not Evidence.DECLARED:
        if demand.busier <= link.bytes_per_second:
            return None
        return Finding(
            reason=reasons.RANKS_CONTENDED,
            message=f"{asked} {_both(demand, gigabytes)}. One engine was measured to get"
            f" {gigabytes(link.bytes_per_second)} from all ranks: they may queue for each other."
            f" Where they do, {_SPLIT}.",
        )
    ranks, together = case.spec.pool.ranks, case.ranks_together or 1
    there = demand.times(together / ranks)
    way = "out of" if moved.read >= moved.written else "into"
    rho = there.busier / link.bytes_per_second
    if rho < BUSY:
        return None
    held = f"a node with {together} of {ranks} ranks and"
    if case.ranks_together is None:
        held = "the node of one rank (if each rank has a node of its own) with"
    return Finding(
        reason=reasons.RANKS_CONTENDED,
        message=f"{asked} {_both(demand, gigabits)}. Of that {held}"
        f" {gigabits(link.bytes_per_second)} each way has {_both(there, gigabits)}:"
        f" {_busy(f'way {way} that node', rho)}."
        f" {_way_out(together, alone=rho / together)}",
        severity=_severity(rho),
    )


def _way_out(together: int, *, alone: float) -> str:
    """``alone`` is rho of a node with one rank: spreading gives that, and no more."""
    if together == 1:
        return f"A rank a node is as far as they spread: {_SPLIT}, or use a faster network."
    if alone < 1:
        return "Spread the ranks."
    return f"Spread the ranks, and {_SPLIT}: a rank a node is not enough."


def prefill_rate_off(case: Case) -> Finding | None:
    """Engines prefill at another rate than declared, so B* is another."""
    off = case.off
    if off is None:
        return None
    most, judged = ("at least", "by that") if off.faster else ("at most", "by what is declared")
    return Finding(
        reason=reasons.PREFILL_RATE_OFF,
        message=f"Engines prefill {most} {digits(off.seen)} tokens/s by their own metrics"
        f" (Observed), and pool.prefillRate says {digits(off.declared)} (Declared). Declare what"
        f" they do: break-even is {most} {digits(off.factor)} times as high. The verdict is"
        f" {judged}.",
    )


def _both(each: Traffic, unit: Callable[[float], str]) -> str:
    return f"reads {unit(each.read)}, writes {unit(each.written)}"


def _busy(what: str, rho: float) -> str:
    end = "and its queue grows without end" if rho >= 1 else "and requests wait"
    return f"the {what} is busy {digits(rho)} of the time, {end}"


def _severity(rho: float) -> Severity:
    return Severity.ERROR if rho >= 1 else Severity.WARNING
