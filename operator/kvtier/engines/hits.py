"""Pure: an engine's metrics text to prompt tokens, those of them that the tier served, and waiters.

Hits in a GPU's own cache are not the tier's. The first of these that a text has is its source:

- LMCache's server (names of 0.5.6 and after): tokens of ``lookup_hit_l2``, what L2 added to what
  its own memory (L1) had. It counts from the start of the prompt, so that what the GPU held anyway
  is in it.
- vLLM (names of 0.32): ``prompt_tokens_by_source_total``, counted when a prompt is prefilled; what
  a connector gave is ``external_kv_transfer``. Releases without it:
  ``external_prefix_cache_hits_total``, counted when it is scheduled. What LMCache had in L1 is in
  both.
- LMCache inside vLLM, where vLLM tells neither: tokens of look-ups.
- SGLang with a HiCache storage backend (names of 0.5.20): ``cached_tokens_total`` whose source is
  a storage. Without such a backend it tells nothing of a tier.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client.samples import Sample

from kvtier.engines.exposition import STARTED, samples

_Found = Mapping[str, list[Sample]]

LMCACHE_L2: Final = "lmcache_mp_lookup_hit_l2_tokens_total"
_LMCACHE_HIT: Final = "lmcache_mp_lookup_hit_tokens_total"
_LMCACHE_PROMPT: Final = "lmcache_mp_lookup_prompt_tokens_total"
"""All tokens of prompts; releases up to 0.5.6 tell only those in whole chunks."""
_LMCACHE_ASKED: Final = "lmcache_mp_lookup_requested_tokens_total"
VLLM_BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
VLLM_EXTERNAL: Final = "vllm:external_prefix_cache_hits_total"
_VLLM_PROMPT: Final = "vllm:prompt_tokens_total"
_VLLM_LOCAL: Final = "vllm:prefix_cache_hits_total"
_VLLM_PREFILL: Final = "vllm:request_prefill_time_seconds_sum"
_VLLM_REQUESTS: Final = "vllm:request_prompt_tokens_count"
_VLLM_WAITING: Final = "vllm:num_requests_waiting"
_VLLM_REASONS: Final = "vllm:num_requests_waiting_by_reason"
_EXTERNAL, _COMPUTED, _CAPACITY = "external_kv_transfer", "local_compute", "capacity"
LMCACHE_LOOKUP: Final = "lmcache:num_lookup_hits_total"
SGLANG_CACHED: Final = "sglang:cached_tokens_total"
_SGLANG_PROMPT: Final = "sglang:prompt_tokens_total"
_SGLANG_REQUESTS: Final = "sglang:num_requests_total"
_SGLANG_QUEUE: Final = "sglang:num_queue_reqs"
_SGLANG_STORAGE: Final = ("sglang:prefetched_tokens_total", "sglang:backuped_tokens_total")
"""There once a storage has moved anything; a source ``storage`` only once one has hit."""
_STORAGE: Final = "storage"

_ENGINES: Final = (
    *(_VLLM_PROMPT, VLLM_BY_SOURCE, VLLM_EXTERNAL, _VLLM_LOCAL, _VLLM_REQUESTS, _VLLM_WAITING),
    *(_VLLM_PREFILL, LMCACHE_LOOKUP),
    *(_SGLANG_PROMPT, SGLANG_CACHED, _SGLANG_REQUESTS, _SGLANG_QUEUE, *_SGLANG_STORAGE),
)
_SERVER: Final = (LMCACHE_L2, _LMCACHE_HIT, _LMCACHE_PROMPT, _LMCACHE_ASKED)
WANTED: Final = (STARTED, *_ENGINES, *_SERVER)
"""Beginnings of the names that are read."""
PROMETHEUS_NAMES: Final = (*WANTED, _VLLM_REASONS)
"""The names themselves, each."""


@dataclass(frozen=True, slots=True)
class TokenCounters:
    """What one pod has counted since its start, all its data parallel ranks together.

    ``source`` names the metric of ``hit``; it is "" where nothing tells hits of a tier, and ``hit``
    is 0 then. ``prompt``, ``hit`` and ``computed`` are tokens, ``requests`` prompts (0 where that
    is not told). ``waiting`` are requests that wait now, ``held`` those of them that wait for the
    GPU and not for a load; None where nothing tells. ``prefill`` are the seconds that requests
    spent in prefill, summed over them, None where nothing tells. ``started`` is the process's start
    in seconds since the epoch, 0 where that is not told.
    """

    source: str
    prompt: float
    hit: float
    computed: float
    requests: float = 0.0
    waiting: float | None = None
    held: float | None = None
    prefill: float | None = None
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenWork:
    """What one pod did in ``seconds``. ``busy``: prompts waited for its GPU at both ends.
    ``prefill`` as in the counters."""

    source: str
    seconds: float
    prompt: float
    hit: float
    computed: float
    requests: float
    busy: bool
    prefill: float | None = None


def read_tokens(text: str) -> TokenCounters | None:
    """The counters, None for a text that tells no prompt tokens. Raises nothing."""
    found = samples(text, WANTED)
    return None if found is None else tokens_of(found)


def tokens_of(found: Mapping[str, list[Sample]]) -> TokenCounters | None:
    """The same of samples by name, of one pod."""
    return _with_lmcache(found, _vllm(found) or _sglang(found))


def tokens_between(
    before: TokenCounters, after: TokenCounters, *, seconds: float
) -> TokenWork | None:
    """What a pod did between two readings; None if it was started in between, or if it tells its
    hits by another metric than before."""
    same = (before.source, before.started) == (after.source, after.started)
    fields = ("prompt", "hit", "computed", "requests")
    more = {name: getattr(after, name) - getattr(before, name) for name in fields}
    # ``computed`` may be a difference of counters that move at different moments.
    if not same or seconds <= 0 or min(more["prompt"], more["hit"], more["requests"]) < 0:
        return None
    computed = min(max(0.0, more["computed"]), more["prompt"])
    prefill = None
    if before.prefill is not None and after.prefill is not None:
        prefill = max(0.0, after.prefill - before.prefill)
    return TokenWork(
        source=after.source,
        seconds=seconds,
        prompt=more["prompt"],
        hit=min(more["hit"], more["prompt"]),
        computed=computed,
        requests=more["requests"],
        busy=bool(before.held and after.held),
        prefill=prefill,
    )


def _vllm(found: _Found) -> TokenCounters | None:
    if _VLLM_PROMPT not in found:
        return None
    prompt = _total(found, _VLLM_PROMPT)
    sources = found.get(VLLM_BY_SOURCE, ())
    if sources:
        source = VLLM_BY_SOURCE
        hit, computed = (_labelled(sources, "source", name) for name in (_EXTERNAL, _COMPUTED))
    elif VLLM_EXTERNAL in found:
        source, hit = VLLM_EXTERNAL, _total(found, VLLM_EXTERNAL)
        computed = max(0.0, prompt - hit - _total(found, _VLLM_LOCAL))
    else:
        # Each prompt is looked up once, whole.
        source = LMCACHE_LOOKUP if LMCACHE_LOOKUP in found else ""
        hit = _total(found, LMCACHE_LOOKUP)
        computed = max(0.0, prompt - hit)
    waiting = _total(found, _VLLM_WAITING) if _VLLM_WAITING in found else None
    reasons = found.get(_VLLM_REASONS, ())
    return TokenCounters(
        source=source,
        prompt=prompt,
        hit=hit,
        computed=computed,
        requests=_total(found, _VLLM_REQUESTS),
        waiting=waiting,
        held=_labelled(reasons, "reason", _CAPACITY) if reasons else waiting,
        prefill=_total(found, _VLLM_PREFILL) if _VLLM_PREFILL in found else None,
        started=_started(found),
    )


def _sglang(found: _Found) -> TokenCounters | None:
    if _SGLANG_PROMPT not in found:
        return None
    prompt, cached = _total(found, _SGLANG_PROMPT), found.get(SGLANG_CACHED, [])
    stored = [each for each in cached if each.labels.get("cache_source", "").startswith(_STORAGE)]
    tells = bool(stored) or any(name in found for name in _SGLANG_STORAGE)
    queues: dict[str, float] = {}
    for each in found.get(_SGLANG_QUEUE, ()):
        # Ranks of one engine tell the same queue; each data parallel rank has its own.
        rank = each.labels.get("dp_rank", "")
        queues[rank] = max(queues.get(rank, 0.0), each.value)
    waiting = math.fsum(queues.values()) if queues else None
    return TokenCounters(
        source=SGLANG_CACHED if tells else "",
        prompt=prompt,
        hit=_sum(stored),
        computed=max(0.0, prompt - _sum(cached)),
        requests=_total(found, _SGLANG_REQUESTS),
        waiting=waiting,
        held=waiting,
        started=_started(found),
    )


def _with_lmcache(found: _Found, engine: TokenCounters | None) -> TokenCounters | None:
    """An engine's text may have LMCache's in it, or be LMCache's alone."""
    if LMCACHE_L2 not in found:
        return engine
    hit = _total(found, LMCACHE_L2)
    asked = _LMCACHE_PROMPT if _LMCACHE_PROMPT in found else _LMCACHE_ASKED
    if engine is None:
        prompt = _total(found, asked)
        computed = max(0.0, prompt - _total(found, _LMCACHE_HIT))
        return TokenCounters(
            source=LMCACHE_L2, prompt=prompt, hit=hit, computed=computed, started=_started(found)
        )
    return replace(engine, source=LMCACHE_L2, hit=hit)


def _started(found: _Found) -> float:
    return max((each.value for each in found.get(STARTED, ())), default=0.0)


def _total(found: _Found, name: str) -> float:
    return _sum(found.get(name, ()))


def _labelled(these: Iterable[Sample], label: str, value: str) -> float:
    return _sum(each for each in these if each.labels.get(label) == value)


def _sum(these: Iterable[Sample]) -> float:
    return math.fsum(each.value for each in these)
