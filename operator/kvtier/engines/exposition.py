"""Pure: an engine's metrics text to the few counters that tell its prefill rate.

vLLM (names and meaning as in 0.32): each finished request adds to ``request_prefill_time_seconds``
the time from its first scheduling to its first token, to ``request_prefill_kv_computed_tokens`` the
tokens that neither GPU nor connector had, and to ``request_prompt_tokens`` all of them, at once. A
step that gave anybody a token adds to ``iteration_tokens_total`` the computed tokens of the prompts
that it ended, and the tokens that it generated.

SGLang (names as in 0.5.20): ``realtime_tokens_total`` by mode, and with
SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 ``gpu_execution_seconds_total`` by kind of work.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

MOST_LINES: Final = 2000
"""Lines that count, of one engine: some tens of each data parallel rank."""
LONGEST_LINE: Final = 512
MOST_CHARACTERS: Final = 2**17
"""Of all these lines: 140 data parallel ranks of the most talkative engine. The parser is slow with
long lines and with many labels; so much takes it 0.2 s at worst, 4 MiB took 12."""
MOST_COUNTED: Final = 1e18


class Kind(StrEnum):
    VLLM = "vLLM"
    SGLANG = "SGLang"


@dataclass(frozen=True, slots=True)
class Counters:
    """What one pod has counted since its start, all its series together. Tokens, seconds.

    ``series`` is how many tell: each data parallel rank is an engine by itself, and ranks of one
    engine that all tell the same only repeat it. Of the series ``computed`` are the tokens that
    were prefilled, ``hits`` those that were not; of the pod ``prompt`` are both. ``busy`` are
    seconds of prefill, None where nothing tells: in vLLM each request's own, which overlap when
    requests share steps, in SGLang the GPU's. ``ends`` are steps that ended a prefill or generated,
    ``generated`` the tokens generated in them; both are 0 where ``busy`` cannot overlap.
    ``started`` is the process's start in seconds since the epoch, 0 where it is not told.
    """

    kind: Kind
    series: int
    requests: float
    prompt: float
    hits: float
    computed: float
    busy: float | None
    ends: float = 0.0
    generated: float = 0.0
    started: float = 0.0


STARTED: Final = "process_start_time_seconds"
_VLLM: Final = {
    "requests": "vllm:request_prefill_time_seconds_count",
    "busy": "vllm:request_prefill_time_seconds_sum",
    "computed": "vllm:request_prefill_kv_computed_tokens_sum",
    "prompt": "vllm:request_prompt_tokens_sum",
    "ends": "vllm:iteration_tokens_total_count",
    "stepped": "vllm:iteration_tokens_total_sum",
}
_SGLANG: Final = {
    "requests": "sglang:num_requests_total",
    "prompt": "sglang:prompt_tokens_total",
    "realtime": "sglang:realtime_tokens_total",
    "gpu": "sglang:gpu_execution_seconds_total",
}
_NO_PREFILL: Final = ("decode", "idle")
"""Kinds of GPU work without a prefill. Whatever else there is counts: too much only lowers R."""
_RANKS: Final = ("tp_rank", "pp_rank", "dp_rank", "moe_ep_rank")
_WANTED: Final = (STARTED, *_VLLM.values(), *_SGLANG.values())


def parse(text: str) -> Counters | None:
    """The counters, None for a text that does not have them all. Raises nothing."""
    by_name = samples(text, _WANTED)
    if by_name is None:
        return None
    started = max((sample.value for sample in by_name.get(STARTED, ())), default=0.0)
    return _vllm(by_name, started=started) or _sglang(by_name, started=started)


def samples(text: str, wanted: tuple[str, ...]) -> dict[str, list[Sample]] | None:
    """By name, the samples in lines that begin with one of ``wanted``. None if there is none, if
    there is more than kvtier reads of a stranger, or if one is below 0, above ``MOST_COUNTED`` or
    no number. Raises nothing."""
    lines = [
        line for line in text.split("\n") if line.startswith(wanted) and len(line) <= LONGEST_LINE
    ]
    if not lines or len(lines) > MOST_LINES or sum(map(len, lines)) > MOST_CHARACTERS:
        return None
    try:
        found = list(_samples("\n".join(lines) + "\n"))
    # Whatever the parser makes of a text that a stranger wrote.
    except Exception:
        return None
    if not all(0 <= sample.value <= MOST_COUNTED for sample in found):
        return None
    by_name: dict[str, list[Sample]] = {}
    for sample in found:
        by_name.setdefault(sample.name, []).append(sample)
    return by_name


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _vllm(found: Mapping[str, list[Sample]], *, started: float) -> Counters | None:
    if not all(name in found for name in _VLLM.values()):
        return None
    total = {field: math.fsum(each.value for each in found[name]) for field, name in _VLLM.items()}
    return Counters(
        kind=Kind.VLLM,
        series=len({each.labels.get("engine", "") for each in found[_VLLM["requests"]]}),
        requests=total["requests"],
        prompt=total["prompt"],
        hits=max(0.0, total["prompt"] - total["computed"]),
        computed=total["computed"],
        busy=total["busy"],
        ends=total["ends"],
        generated=max(0.0, total["stepped"] - total["computed"]),
        started=started,
    )


def _sglang(found: Mapping[str, list[Sample]], *, started: float) -> Counters | None:
    tokens = found.get(_SGLANG["realtime"], [])
    modes = {
        mode: math.fsum(each.value for each in tokens if each.labels.get("mode") == mode)
        for mode in ("prefill_compute", "prefill_cache")
    }
    requests, prompt = found.get(_SGLANG["requests"]), found.get(_SGLANG["prompt"])
    if not tokens or not requests or not prompt:
        return None
    gpu = found.get(_SGLANG["gpu"], [])
    work = [each for each in gpu if each.labels.get("category", "").lower() not in _NO_PREFILL]
    ranks = {tuple(each.labels.get(name, "") for name in _RANKS) for each in tokens}
    return Counters(
        kind=Kind.SGLANG,
        series=len(ranks),
        requests=math.fsum(each.value for each in requests),
        prompt=math.fsum(each.value for each in prompt),
        hits=modes["prefill_cache"],
        computed=modes["prefill_compute"],
        busy=math.fsum(each.value for each in work) if work else None,
        started=started,
    )
