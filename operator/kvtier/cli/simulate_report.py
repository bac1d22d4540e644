"""What ``kvtier simulate storm`` says: rows over time, and the figures that decide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from kvtier.admission.capacity import WAITING_PROMPTS, storm_factor
from kvtier.admission.simulate import Look, Plan, Run, quantile, zero_hit_seconds
from kvtier.admission.storm import State
from kvtier.breakeven.words import digits

SERVICE_FACTOR: Final = 1.5
"""What a prompt may take in a storm beyond the queue, over its prefill on an idle engine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One step that ends at ``at`` seconds. Tokens/s and seconds; None where nothing was counted.

    Hits, limit and queue are of the looks in it (the limit and the queue of the last), TTFT of the
    requests that came in it and were let in.
    """

    at: float
    state: State
    hit_rate: float | None
    limit: float | None
    waiting: int
    queue_seconds: float
    ttft_p50: float | None
    ttft_p99: float | None
    admitted: float
    shed: float


@dataclass(frozen=True)
class Report:
    """A run and what it was of."""

    name: str
    plan: Plan
    run: Run
    seed: int
    step: float

    @cached_property
    def began(self) -> float | None:
        """When the first limit after the wipe was there."""
        times = (look.at for look in self.run.looks if self._after(look) and look.limit is not None)
        return next(times, None)

    @cached_property
    def opened(self) -> float | None:
        """When it was Open again after that."""
        began = self.began
        if began is None:
            return None
        looks = (look for look in self.run.looks if look.at > began)
        return next((look.at for look in looks if look.state is State.OPEN), None)

    @property
    def first_shed(self) -> float | None:
        """When the first request after the wipe was refused."""
        return next((at for at, _ in self.run.shed if at >= self.plan.wipe_at), None)

    @property
    def zero_hit_capacity(self) -> float:
        """utilization x what engines really prefill while nothing hits [tokens/s]."""
        tokens = math.fsum(kind.tokens for kind in self.plan.kinds)
        seconds = math.fsum(kind.prefill for kind in self.plan.kinds)
        return self.plan.sizes.utilization * self.plan.engines * tokens / seconds

    @property
    def queue_bound(self) -> float:
        """Seconds that a request may wait in a storm: the declared target, else two prompts."""
        sizes = self.plan.sizes
        if sizes.target_ttft is not None:
            return sizes.target_ttft
        return WAITING_PROMPTS * sizes.mean_prompt / sizes.engine_rate

    @property
    def ttft_bound(self) -> float:
        """What the 99th of 100 admitted requests should take at most."""
        return SERVICE_FACTOR * zero_hit_seconds(self.plan) + self.queue_bound

    @property
    def ttft_p99(self) -> float | None:
        """Of requests that came under the limit."""
        return self._p99(self.began)

    @property
    def ttft_p99_since_wipe(self) -> float | None:
        """Of all that came since the wipe and before it was Open again: also the seconds in which
        nobody knew."""
        return self._p99(self.plan.wipe_at)

    @property
    def goodput(self) -> float | None:
        """Prompt tokens/s that were done under the limit, over the zero-hit capacity."""
        began, ended = self.began, self._end
        if began is None or ended <= began:
            return None
        tokens = math.fsum(
            request.kind.tokens
            for request in self.run.admitted
            if request.ended is not None and began <= request.ended < ended
        )
        return tokens / (ended - began) / self.zero_hit_capacity

    @property
    def worst_queue(self) -> float:
        """The most seconds of work that waited in an engine on average, since the wipe."""
        return max((look.queue_seconds for look in self.run.looks if self._after(look)), default=0)

    @cached_property
    def rows(self) -> list[Row]:
        count = math.ceil(self.plan.duration / self.step - 1e-9)
        return [
            self._row(number * self.step, min((number + 1) * self.step, self.plan.duration))
            for number in range(count)
        ]

    @property
    def _end(self) -> float:
        return self.plan.duration if self.opened is None else self.opened

    def _after(self, look: Look) -> bool:
        return look.at >= self.plan.wipe_at

    def _p99(self, begin: float | None) -> float | None:
        if begin is None:
            return None
        return _quantile(self._ttfts(begin, self._end), 0.99)

    def _ttfts(self, begin: float, end: float) -> list[float]:
        return [
            request.ttft
            for request in self.run.admitted
            if request.ttft is not None and begin <= request.arrived < end
        ]

    def _row(self, begin: float, end: float) -> Row:
        looks = [look for look in self.run.looks if begin < look.at <= end]
        prompt = math.fsum(look.prompt for look in looks)
        last = looks[-1] if looks else None
        ttfts = self._ttfts(begin, end)
        admitted = sum(
            request.kind.tokens for request in self.run.admitted if begin <= request.arrived < end
        )
        shed = sum(tokens for at, tokens in self.run.shed if begin <= at < end)
        return Row(
            at=end,
            state=State.OPEN if last is None else last.state,
            hit_rate=math.fsum(look.hit for look in looks) / prompt if prompt else None,
            limit=None if last is None else last.limit,
            waiting=0 if last is None else last.waiting,
            queue_seconds=0.0 if last is None else last.queue_seconds,
            ttft_p50=_quantile(ttfts, 0.5),
            ttft_p99=_quantile(ttfts, 0.99),
            admitted=admitted / (end - begin),
            shed=shed / (end - begin),
        )


def document(report: Report) -> dict[str, Any]:
    """Plain data, unrounded; what is not known is absent."""
    plan = report.plan
    return {
        "name": report.name,
        "admission": plan.admission,
        "seed": report.seed,
        "engines": plan.engines,
        "requestsPerSecond": plan.requests_per_second,
        "prefixes": plan.prefixes,
        "wipeAtSeconds": plan.wipe_at,
        "durationSeconds": plan.duration,
        "summary": _known(
            {
                "zeroHitTokensPerSecond": report.zero_hit_capacity,
                "stormFactor": storm_factor(_prefix_share(plan)),
                "zeroHitServiceSeconds": zero_hit_seconds(plan),
                "limitAfterSeconds": _since(plan, report.began),
                "firstRefusalAfterSeconds": _since(plan, report.first_shed),
                "openAfterSeconds": _since(plan, report.opened),
                "ttftP99Seconds": report.ttft_p99,
                "ttftP99SinceWipeSeconds": report.ttft_p99_since_wipe,
                "ttftBoundSeconds": report.ttft_bound,
                "worstQueueSeconds": report.worst_queue,
                "goodputShare": report.goodput,
            }
        ),
        "rows": [
            _known(
                {
                    "atSeconds": row.at,
                    "state": row.state.value,
                    "hitRate": row.hit_rate,
                    "limitTokensPerSecond": row.limit,
                    "waitingRequests": row.waiting,
                    "queueSeconds": row.queue_seconds,
                    "ttftP50Seconds": row.ttft_p50,
                    "ttftP99Seconds": row.ttft_p99,
                    "admittedTokensPerSecond": row.admitted,
                    "shedTokensPerSecond": row.shed,
                }
            )
            for row in report.rows
        ],
    }


def table(report: Report) -> str:
    """The whole text, ending in a newline."""
    plan = report.plan
    header = ["time", "state", "hits", "limit", "let in", "refused", "queue", "TTFT p50", "p99"]
    rows = [header, *(_cells(row) for row in report.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        f"Tier {report.name}: {plan.engines} engines, {digits(plan.requests_per_second)} requests/s"
        f" over {plan.prefixes:,} prefixes, admission {'on' if plan.admission else 'off'}."
        f" A rank restarts empty at {plan.wipe_at:g} s.",
        "",
        *_summary(report),
        "",
        *(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ),
        "",
        "limit, let in and refused in prompt tokens/s; docs/admission.md explains each figure.",
    ]
    if not plan.admission:
        lines[-1] = f"The limit is what it would have been. {lines[-1][0].upper()}{lines[-1][1:]}"
    return "\n".join(lines) + "\n"


def _summary(report: Report) -> list[str]:
    plan = report.plan
    facts = [
        (
            "zero-hit capacity",
            f"{digits(report.zero_hit_capacity)} tokens/s; a cold tier is"
            f" {digits(storm_factor(_prefix_share(plan)))} times the prefill work of a warm one",
        ),
        ("limit", _after(plan, report.began, "no limit was needed")),
        ("first refusal", _after(plan, report.first_shed, "none")),
        ("Open again", _after(plan, report.opened, "not before the end")),
    ]
    if report.ttft_p99 is not None and report.ttft_p99_since_wipe is not None:
        held = "within" if report.ttft_p99 <= report.ttft_bound else "above"
        facts.append(
            (
                "p99 TTFT",
                f"{digits(report.ttft_p99)} s under the limit, {held} the bound of"
                f" {digits(report.ttft_bound)} s; {digits(report.ttft_p99_since_wipe)} s since the"
                " wipe",
            )
        )
    facts.append(("longest queue", f"{digits(report.worst_queue)} s of work in each engine"))
    if report.goodput is not None:
        facts.append(("goodput", f"{digits(report.goodput)} x the zero-hit capacity"))
    width = max(len(name) for name, _ in facts)
    return [f"  {name.ljust(width)}  {value}" for name, value in facts]


def _cells(row: Row) -> list[str]:
    return [
        f"{row.at:g} s",
        row.state.value,
        "-" if row.hit_rate is None else f"{row.hit_rate:.0%}",
        "-" if row.limit is None else f"{row.limit:,.0f}",
        f"{row.admitted:,.0f}",
        f"{row.shed:,.0f}",
        f"{row.queue_seconds:.1f} s",
        "-" if row.ttft_p50 is None else f"{row.ttft_p50:.2f} s",
        "-" if row.ttft_p99 is None else f"{row.ttft_p99:.2f} s",
    ]


def _after(plan: Plan, at: float | None, none: str) -> str:
    return none if at is None else f"{digits(at - plan.wipe_at)} s after the wipe"


def _since(plan: Plan, at: float | None) -> float | None:
    return None if at is None else at - plan.wipe_at


def _prefix_share(plan: Plan) -> float:
    tokens = math.fsum(kind.tokens for kind in plan.kinds)
    return math.fsum(kind.prefix for kind in plan.kinds) / tokens


def _quantile(values: Sequence[float], share: float) -> float | None:
    return quantile(values, share) if values else None


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if value is not None}
