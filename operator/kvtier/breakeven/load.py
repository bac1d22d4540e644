"""A tier under load: the requests that it declares, and what they ask of GPU and link."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtier.api.scalars import parse_duration
from kvtier.api.types import KVCacheTierSpec, LengthQuantile
from kvtier.breakeven import footprint, rates
from kvtier.breakeven.queueing import Duplex, Service, gpu_seconds, service, threshold_rate

SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Request:
    """One of equally likely requests: tokens of the prompt, and of it those that hit."""

    prompt: int
    hit: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one request moves over its engine's link: of its hit, and of its misses.

    A hit has windows and states once; of misses each chunk is stored with its own. Lookups fetch
    what the GPU holds already too, so nothing is taken off for that.
    """

    read: float
    written: float

    @property
    def busier(self) -> float:
        """What decides how full a link is that carries both at once."""
        return max(self.read, self.written)

    def times(self, factor: float) -> "Traffic":
        return Traffic(read=self.read * factor, written=self.written * factor)


@dataclass(frozen=True, slots=True)
class Load:
    """What requests ask of one engine. Seconds, requests/s.

    ``prefill`` is the GPU's work without a tier, ``gpu`` with one, ``link`` what hits (read) and
    misses (written) need of the link. ``threshold`` is the rate from which the tier is the faster
    way, 0 if it always is, None if it never is.
    """

    hit_rate: float
    prefill: Service
    gpu: Service
    link: Duplex
    threshold: float | None

    @property
    def pays_under_load(self) -> bool:
        """Slower on an idle engine, faster from ``threshold`` on."""
        return self.threshold is not None and self.threshold > 0

    def full_at(self, declared: float | None) -> float | None:
        """Requests/s from which the link is full, where that is near.

        Below twice the threshold, or not above the ``declared`` rate. None elsewhere.
        """
        limit = self.link.limit
        near = self.threshold is not None and limit < 2 * self.threshold
        return limit if near or (declared is not None and declared >= limit) else None


def prefill_points(spec: KVCacheTierSpec) -> list[rates.Point]:
    """(prompt length [tokens], R [tokens/s]) as declared, by length."""
    return sorted(
        (float(point.tokens), float(point.tokens_per_second)) for point in spec.pool.prefill_rate
    )


def requests_per_second(spec: KVCacheTierSpec) -> float | None:
    """Of one engine, None when not declared."""
    declared = spec.workload.requests_per_second
    return None if declared is None else float(declared)


def hit_rate(spec: KVCacheTierSpec) -> float:
    """h, the share of prompt tokens that hit.

    Declared, else mean hit / mean prompt where both lengths are (every request hits), else 1.
    """
    workload = spec.workload
    if workload.hit_rate is not None:
        return float(workload.hit_rate)
    if workload.hit_tokens and workload.prompt_tokens:
        return min(1.0, mean_tokens(workload.hit_tokens) / mean_tokens(workload.prompt_tokens))
    return 1.0


def requests(spec: KVCacheTierSpec) -> tuple[Request, ...]:
    """The prompts that are declared, of each the share h a hit; empty without any lengths.

    Where only hits are declared a prompt is hit / h long.
    """
    share, workload = hit_rate(spec), spec.workload
    if workload.prompt_tokens:
        prompts = lengths(workload.prompt_tokens)
        return tuple(Request(prompt=n, hit=max(1, round(share * n))) for n in prompts)
    return tuple(
        Request(prompt=max(n, round(n / share)), hit=n) for n in lengths(workload.hit_tokens)
    )


def lengths(quantiles: Sequence[LengthQuantile]) -> list[int]:
    """Equally likely lengths [tokens] of the declared distribution; empty without one."""
    if not quantiles:
        return []
    points = sorted((float(item.quantile), float(item.tokens)) for item in quantiles)
    return [max(1, round(value)) for value in rates.sample(points, SAMPLES)]


def mean_tokens(quantiles: Sequence[LengthQuantile]) -> float:
    """Mean length [tokens]. Raises ZeroDivisionError without quantiles."""
    known = lengths(quantiles)
    return sum(known) / len(known)


def traffic(spec: KVCacheTierSpec, asked: Sequence[Request]) -> list[Traffic]:
    """What each of ``asked`` moves, not compressed."""
    wire, chunk = footprint.wire(spec), spec.pool.chunk_tokens
    known = {
        request: Traffic(
            read=wire.of(request.hit),
            # On average: where the hit ends, and so which chunks are full, is anybody's.
            written=(request.prompt - request.hit) * wire.of(chunk) / chunk,
        )
        for request in set(asked)
    }
    return [known[request] for request in asked]


def under_load(
    spec: KVCacheTierSpec,
    *,
    recompute: Callable[[int], float],
    transfer: Callable[[int], float],
    carry: Callable[[float], float],
    round_trip: float,
) -> Load | None:
    """None unless lengths, ``pool.hitLatency`` and ``pool.hitEngineTime`` are declared.

    ``recompute`` and ``transfer`` give seconds of so many tokens, ``carry`` those for which so many
    bytes keep the link busy. ``Hash`` makes a hit wait for the fullest rank, which ``transfer``
    counts; over many requests the ranks are equally full, so ``carry`` does not.
    """
    asked, pool = requests(spec), spec.pool
    if not asked or pool.hit_latency is None or pool.hit_engine_time is None:
        return None
    held = parse_duration(pool.hit_engine_time)
    share = hit_rate(spec)
    work = {request: recompute(request.prompt) for request in set(asked)}
    fetch = {hit: transfer(hit) for hit in {request.hit for request in asked}}
    moved = traffic(spec, asked)
    prefill = service(work[request] for request in asked)
    gpu = service(
        gpu_seconds(hit_rate=share, recompute=work[request], held=held) for request in asked
    )
    link = Duplex(
        read=service(carry(one.read) for one in moved),
        written=service(carry(one.written) for one in moved),
    )
    return Load(
        hit_rate=share,
        prefill=prefill,
        gpu=gpu,
        link=link,
        threshold=threshold_rate(
            prefill,
            stages=(gpu,),
            queues=(link.read,),
            bounds=(link.written,),
            fixed=parse_duration(pool.hit_latency)
            + round_trip
            + math.fsum(fetch[request.hit] for request in asked) / len(asked),
        ),
    )
