"""Figures that contradict each other, or that nothing has."""

from typing import Final

from kvtier.api import reasons
from kvtier.breakeven.load import mean_tokens
from kvtier.breakeven.words import age, counted, digits, gigabits, seconds
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding

TOLERANCE: Final = 1.05
LONGEST_CYCLE: Final = 30 * 86400.0
"""Seconds after which nobody comes back to a prefix."""
FASTEST_RANK: Final = 1e7
"""Tokens/s of one rank: of a model of only a billion parameters, two operations for each and token,
that would be 2e16 operations a second, more than any GPU does."""
FASTEST_LINK: Final = 10e12 / 8
"""Bytes/s into one node; eight ports of 800 Gb/s are 6.4 Tb/s."""
LONGEST_ROUND_TRIP: Final = 1.0
MOST_REQUESTS: Final = 1000.0
"""Requests/s of one engine."""


def hits_longer_than_prompts(case: Case) -> Finding | None:
    workload = case.spec.workload
    if not workload.hit_tokens or not workload.prompt_tokens:
        return None
    hit = max(item.tokens for item in workload.hit_tokens)
    prompt = max(item.tokens for item in workload.prompt_tokens)
    if hit <= prompt:
        return None
    return _contradiction(
        f"workload.hitTokens goes up to {hit:,} and workload.promptTokens to {prompt:,}: a hit is"
        " a part of a prompt"
    )


def hit_rate_above_lengths(case: Case) -> Finding | None:
    """More tokens hit than if every request did."""
    workload = case.spec.workload
    if workload.hit_rate is None or not workload.hit_tokens or not workload.prompt_tokens:
        return None
    most = mean_tokens(workload.hit_tokens) / mean_tokens(workload.prompt_tokens)
    if float(workload.hit_rate) <= TOLERANCE * most:
        return None
    return _contradiction(
        f"workload.hitRate is {workload.hit_rate}, but if every request hit, mean hit / mean prompt"
        f" would be {digits(most)}"
    )


def hit_larger_than_working_set(case: Case) -> Finding | None:
    longest, working_set = case.longest_hit, case.spec.workload.working_set_tokens
    if longest is None or working_set is None or longest <= working_set:
        return None
    return _contradiction(
        f"workload.workingSetTokens is {working_set:,}, and one hit has up to {longest:,}"
    )


def working_set_larger_than_all_that_is_asked(case: Case) -> Finding | None:
    """The whole fleet would take a month to ask for it once."""
    working_set, rate = case.spec.workload.working_set_tokens, case.requests_per_second
    if working_set is None or rate is None or case.mean_prompt is None:
        return None
    engines = case.spec.pool.max_engines
    asked = rate * engines * case.mean_prompt
    if working_set <= LONGEST_CYCLE * asked:
        return None
    return _contradiction(
        f"workload.workingSetTokens is {working_set:,}: {engines} engines at {digits(rate)}"
        f" requests/s ask for it once in {age(working_set / asked)}"
    )


def implausible_prefill_rate(case: Case) -> Finding | None:
    """The spec's rates are those that engines show, where these count (``as_seen``)."""
    fastest = float(max(point.tokens_per_second for point in case.spec.pool.prefill_rate))
    most, ranks = FASTEST_RANK * case.spec.pool.ranks, counted(case.spec.pool.ranks, "rank")
    if fastest <= most:
        return None
    seen = case.off is not None and case.off.faster
    declared = fastest / case.off.factor if case.off is not None and seen else fastest
    if declared <= most:
        return _implausible(
            f"by engines' own metrics (Observed) they prefill {digits(fastest)} tokens/s on"
            f" {ranks}; see that pool.ranks is right, and that the metrics are of these engines"
        )
    return _implausible(
        f"pool.prefillRate has {digits(declared)} tokens/s for {ranks}; it is tokens in a second,"
        " of one engine"
    )


def implausible_link(case: Case) -> Finding | None:
    link = case.assessment.link
    if link is None:
        return None
    if link.bytes_per_second > FASTEST_LINK:
        return _implausible(
            f"the {link.domain} link has {gigabits(link.bytes_per_second)}; no node has as much"
        )
    if link.round_trip_seconds > LONGEST_ROUND_TRIP:
        return _implausible(
            f"the {link.domain} link has a round trip of {seconds(link.round_trip_seconds)}"
        )
    return None


def implausible_request_rate(case: Case) -> Finding | None:
    rate = case.requests_per_second
    if rate is None or rate <= MOST_REQUESTS:
        return None
    return _implausible(
        f"workload.requestsPerSecond is {digits(rate)}; it is what one engine gets in a second"
    )


def _contradiction(what: str) -> Finding:
    return Finding(reason=reasons.CONTRADICTORY_WORKLOAD, message=f"Contradictory: {what}.")


def _implausible(what: str) -> Finding:
    return Finding(reason=reasons.IMPLAUSIBLE_FIGURE, message=f"Implausible: {what}.")
