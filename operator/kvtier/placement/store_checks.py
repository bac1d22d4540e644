"""What the store decides: its memory, and what a rank that is lost costs."""

import math

from kvtier.api import reasons
from kvtier.api.scalars import parse_duration
from kvtier.api.types import Adapter, Connector
from kvtier.breakeven.assessment import Evidence
from kvtier.breakeven.words import counted, digits, gigabytes, seconds
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding, Severity
from kvtier.render.memory import MemoryTooSmall
from kvtier.render.transport import Transport, bytes_at_once, transport


def memory_too_small(case: Case) -> Finding | None:
    """A rank that holds fewer than 16 chunks beside its buffers."""
    if not isinstance(case.room, MemoryTooSmall):
        return None
    return Finding(
        reason=reasons.MEMORY_TOO_SMALL,
        message=str(case.room),
        severity=Severity.ERROR,
        blocks=True,
    )


def hits_do_not_fit(case: Case) -> Finding | None:
    """Hits longer than all that the store holds evict their own first chunks."""
    held, longest = case.held_tokens, case.longest_hit
    if held is None or longest is None or longest <= held:
        return None
    workload = case.spec.workload
    shortest = min(item.tokens for item in workload.hit_tokens or workload.prompt_tokens)
    none_fits = shortest > held
    return Finding(
        reason=reasons.HITS_DO_NOT_FIT,
        message=f"The store holds {held:,} tokens, and "
        + (
            f"the shortest length declared has {shortest:,}: no hit fits."
            if none_fits
            else f"the longest length declared has {longest:,}."
        )
        + " Raise store.memoryPerRank.",
        severity=Severity.ERROR if none_fits else Severity.WARNING,
        blocks=none_fits,
    )


def capacity_below_working_set(case: Case) -> Finding | None:
    """What hits come back to does not stay."""
    held, wanted = case.held_tokens, case.spec.workload.working_set_tokens
    if held is None or wanted is None or wanted <= held:
        return None
    return Finding(
        reason=reasons.CAPACITY_BELOW_WORKING_SET,
        message=f"The store holds {held:,} tokens, {digits(100 * held / wanted)} % of"
        f" workload.workingSetTokens ({wanted:,}): of prefixes that come back equally often no"
        " larger share hits. Raise store.memoryPerRank.",
    )


def link_too_slow_for_pool(case: Case) -> Finding | None:
    """Even one connection per engine and rank needs a request timeout above a second."""
    settings = _transport(case)
    if settings is None or settings.fits:
        return None
    pool = case.spec.pool
    less = "Lower pool.maxEngines"
    if pool.max_engines == 1:
        less = "Lower pool.chunkTokens (for a new tier)"
    return Finding(
        reason=reasons.LINK_TOO_SLOW_FOR_POOL,
        message=f"With {counted(pool.max_engines, 'engine')} reading at once over"
        f" {'the declared link' if settings.link else 'an assumed link of 25 Gb/s'}, one chunk may"
        f" take so long that request_timeout has to be {digits(settings.request_timeout)} s: a dead"
        f" rank stalls lookups for as long. {less}, or measure the link (kvtier probe) and declare"
        " what it does.",
    )


def request_timeout_too_short(case: Case) -> Finding | None:
    """A rank is slower than what the timeout was worked out from: healthy loads fail."""
    settings, link = _transport(case), case.assessment.link
    if settings is None or link is None or link.evidence is Evidence.DECLARED or link.lower_bound:
        return None
    rank = link.slowest_rank_bytes_per_second or link.bytes_per_second / case.spec.pool.ranks
    batch = bytes_at_once(case.spec) * settings.workers * case.spec.pool.max_engines / rank
    if batch <= settings.request_timeout:
        return None
    return Finding(
        reason=reasons.REQUEST_TIMEOUT_TOO_SHORT,
        message=f"The slowest rank gives {gigabytes(rank)}: with all {case.spec.pool.max_engines}"
        f" engines reading, a batch takes {seconds(batch)}, longer than request_timeout"
        f" ({digits(settings.request_timeout)} s). Declare the link as it is, so that engines get"
        " a longer one; lookups then wait longer for a dead rank (NOTICE in the engine Secret says"
        " how long).",
    )


def stall_above_target(case: Case) -> Finding | None:
    """While a rank is dead, a lookup waits for longer than requests are promised."""
    settings, target = _transport(case), case.spec.workload.target_ttft
    longest = case.longest_hit
    if settings is None or target is None or longest is None:
        return None
    engine = case.spec.pool.engine
    if engine.connector is Connector.GENERIC or engine.adapter is Adapter.PLUGIN:
        # The plugin waits for a dead rank once; how other clients take it is not known.
        return None
    chunks = math.ceil(longest / case.spec.pool.chunk_tokens)
    stall = settings.stall(chunks)
    if stall <= parse_duration(target):
        return None
    return Finding(
        reason=reasons.STALL_ABOVE_TARGET,
        message=f"While a rank is dead or hangs, a lookup of {longest:,} tokens waits"
        f" {seconds(stall)} ({counted(chunks, 'chunk')}, {counted(settings.workers, 'worker')},"
        f" request_timeout {digits(settings.request_timeout)} s), and"
        f" workload.targetTTFT is {target}. With pool.engine.adapter: Plugin it waits once only.",
    )


def _transport(case: Case) -> Transport | None:
    return None if isinstance(case.room, MemoryTooSmall) else transport(case.spec)
