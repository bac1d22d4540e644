"""The chain of checks: everything that speaks against a tier, in the order in which it counts."""

from collections.abc import Callable, Iterable
from typing import Final

from kvtier.api.types import KVCacheTierSpec, OnReject
from kvtier.breakeven.assessment import Assessment
from kvtier.breakeven.observed import RateOff
from kvtier.placement.case import Case
from kvtier.placement.engine_checks import (
    copy_on_every_rank,
    l1_too_small,
    revision_moves,
)
from kvtier.placement.findings import Finding, Severity
from kvtier.placement.link_checks import (
    below_break_even,
    chunks_uneven,
    hits_lose_on_average,
    no_hit_long_enough,
    no_prompt_long_enough,
    round_trip_too_long,
)
from kvtier.placement.load_checks import (
    gpu_queue_unstable,
    link_queue_unstable,
    prefill_rate_off,
    ranks_contended,
)
from kvtier.placement.store_checks import (
    capacity_below_working_set,
    hits_do_not_fit,
    link_too_slow_for_pool,
    memory_too_small,
    request_timeout_too_short,
    stall_above_target,
)
from kvtier.placement.workload_checks import (
    hit_larger_than_working_set,
    hit_rate_above_lengths,
    hits_longer_than_prompts,
    implausible_link,
    implausible_prefill_rate,
    implausible_request_rate,
    working_set_larger_than_all_that_is_asked,
)

Check = Callable[[Case], Finding | None]

CHAIN: Final[tuple[Check, ...]] = (
    # Copies that a striping makes of latents.
    copy_on_every_rank,
    # A revision that does not tell weights apart.
    revision_moves,
    # Fewer than 16 chunks on a rank.
    memory_too_small,
    # The longest prompt against LMCache's own memory.
    l1_too_small,
    # T0 alone is longer than the prefill of every prompt.
    no_prompt_long_enough,
    # Hits that are longer than all that the store holds.
    hits_do_not_fit,
    # The link against B*.
    below_break_even,
    # The minimum hit against the lengths of hits.
    no_hit_long_enough,
    # Fetching every hit costs more than it gains.
    hits_lose_on_average,
    # The round trip against R.
    round_trip_too_long,
    # The GPU's queue.
    gpu_queue_unstable,
    # The queue of one engine's link.
    link_queue_unstable,
    # All engines on one rank's node.
    ranks_contended,
    # Capacity against the working set.
    capacity_below_working_set,
    # A timeout that no link so slow can keep short.
    link_too_slow_for_pool,
    # A timeout that the measured rank does not meet.
    request_timeout_too_short,
    # A dead rank against the promised time to first token.
    stall_above_target,
    # Chunks of one hit over the ranks.
    chunks_uneven,
    # R as declared against R as observed.
    prefill_rate_off,
    # Lengths of hits against those of prompts.
    hits_longer_than_prompts,
    # The hit rate against both.
    hit_rate_above_lengths,
    # One hit against the working set.
    hit_larger_than_working_set,
    # The working set against all that is ever asked.
    working_set_larger_than_all_that_is_asked,
    # A prefill rate that no rank has.
    implausible_prefill_rate,
    # A link that no node has.
    implausible_link,
    # A request rate that no engine has.
    implausible_request_rate,
)


def examine(
    spec: KVCacheTierSpec,
    *,
    assessment: Assessment,
    engines: int | None = None,
    ranks_together: int | None = None,
    off: RateOff | None = None,
) -> tuple[Finding, ...]:
    """Everything that the checks find, what is worst first; empty when nothing is wrong.

    ``assessment`` is of the same spec. See ``Case`` for the rest; ``engines`` None is
    ``pool.maxEngines``. Raises nothing for a spec that ``parse_tier`` returned.
    """
    case = Case(
        spec=spec,
        assessment=assessment,
        engines=spec.pool.max_engines if engines is None else engines,
        ranks_together=ranks_together,
        off=off,
    )
    return ordered(found for check in CHAIN if (found := check(case)))


def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """What blocks, then errors, then warnings; of each in the order given."""
    return tuple(
        sorted(found, key=lambda one: (not one.blocks, one.severity is not Severity.ERROR))
    )


def rejection(spec: KVCacheTierSpec, found: Iterable[Finding]) -> Finding | None:
    """Why a new tier must not be made: what no link can change, if the tier asks for ``Block``."""
    if spec.placement.on_reject is not OnReject.BLOCK:
        return None
    return next((finding for finding in found if finding.blocks), None)
