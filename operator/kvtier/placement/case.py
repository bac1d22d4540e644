"""One tier as the checks see it: its spec, its break-even, and where it runs, in plain numbers."""

import math
from dataclasses import dataclass
from functools import cached_property

from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven import rates
from kvtier.breakeven.assessment import Assessment
from kvtier.breakeven.load import (
    Load,
    Traffic,
    prefill_points,
    requests,
    requests_per_second,
    traffic,
    under_load,
)
from kvtier.breakeven.model import recompute_seconds
from kvtier.breakeven.observed import RateOff
from kvtier.render.memory import MemoryTooSmall, RankMemory, held_tokens, memory


@dataclass(frozen=True)
class Case:
    """Bytes, seconds, tokens, requests/s.

    ``engines`` use the tier at once: those that run, else ``pool.maxEngines``. ``ranks_together``
    is the most ranks that one node holds, None where that is not known. ``off`` is the prefill rate
    that engines' own metrics show, None if it is as declared or not known.
    """

    spec: KVCacheTierSpec
    assessment: Assessment
    engines: int
    ranks_together: int | None = None
    off: RateOff | None = None

    @cached_property
    def room(self) -> RankMemory | MemoryTooSmall:
        """One rank's memory, or why it holds too few chunks."""
        try:
            return memory(self.spec)
        except MemoryTooSmall as error:
            return error

    @property
    def held_tokens(self) -> int | None:
        """Tokens of KV that all ranks hold together; None for a tier that cannot be."""
        return None if isinstance(self.room, MemoryTooSmall) else held_tokens(self.spec)

    def rate(self, tokens: float) -> float:
        """R of prompts of so many tokens [tokens/s]."""
        return rates.prefill_rate(self._points, tokens)

    @cached_property
    def _points(self) -> list[rates.Point]:
        return prefill_points(self.spec)

    @property
    def lengths_declared(self) -> bool:
        return bool(self.spec.workload.hit_tokens or self.spec.workload.prompt_tokens)

    @property
    def longest_hit(self) -> int | None:
        """The longest that is declared; a whole prompt, where only prompts are."""
        workload = self.spec.workload
        known = workload.hit_tokens or workload.prompt_tokens
        return max((item.tokens for item in known), default=None)

    @property
    def longest_prompt(self) -> int | None:
        """The longest length that is declared of prompts or hits."""
        workload = self.spec.workload
        known = (*workload.hit_tokens, *workload.prompt_tokens)
        return max((item.tokens for item in known), default=None)

    @property
    def requests_per_second(self) -> float | None:
        return requests_per_second(self.spec)

    @cached_property
    def unlimited(self) -> Load | None:
        """The load on a link without limits: what GPUs alone decide."""
        return under_load(
            self.spec,
            recompute=lambda tokens: recompute_seconds(tokens, self.rate(tokens)),
            transfer=lambda _: 0.0,
            carry=lambda _: 0.0,
            round_trip=0.0,
        )

    @cached_property
    def mean_prompt(self) -> float | None:
        """Mean tokens of a prompt; None without lengths."""
        asked = requests(self.spec)
        return math.fsum(request.prompt for request in asked) / len(asked) if asked else None

    @cached_property
    def moved(self) -> Traffic | None:
        """Mean bytes that a request moves either way; None without lengths."""
        each = traffic(self.spec, requests(self.spec))
        if not each:
            return None
        whole = Traffic(
            read=math.fsum(one.read for one in each),
            written=math.fsum(one.written for one in each),
        )
        return whole.times(1 / len(each) / self.assessment.compression)
