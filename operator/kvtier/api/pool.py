"""``spec.pool`` and ``spec.workload``: the engines that a tier serves, and what they are asked."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from kvtier.api.base import MAX_RANKS, Change, Model, extra, rule
from kvtier.api.engine import Engine
from kvtier.api.scalars import DECIMAL_PATTERN, DURATION_PATTERN, Decimal, Duration, Integer

MAX_REQUESTS_PER_SECOND = 100_000
MIN_CHUNK_TOKENS = 16
_LIVE = extra(Change.LIVE)
_IDENTITY = extra(Change.GENERATION)
_AT_MOST_AN_HOUR = extra(
    Change.LIVE,
    rules=[
        rule(
            f"!self.matches(r'{DURATION_PATTERN}') || duration(self) <= duration('1h')",
            "at most 1h",
        )
    ],
)


class Striping(StrEnum):
    """How chunks spread over the W Valkeys of a tier."""

    HASH = "Hash"
    SHARD = "Shard"


class Parallelism(Model):
    """tensor x pipeline x prefillContext = ranks; decodeContext divides tensor."""

    tensor: Integer | None = Field(
        default=None,
        ge=1,
        le=MAX_RANKS,
        description="Tensor parallel size. Without it the number of ranks.",
        json_schema_extra=_IDENTITY,
    )
    pipeline: Integer = Field(
        default=1,
        ge=1,
        le=MAX_RANKS,
        description="Pipeline parallel size. Above 1 only with striping Hash.",
        json_schema_extra=_IDENTITY,
    )
    decode_context: Integer = Field(
        default=1,
        ge=1,
        le=MAX_RANKS,
        description="Decode context parallel size. Above 1 only with striping Hash and another"
        " layout than gqa.",
        json_schema_extra=_IDENTITY,
    )
    prefill_context: Integer = Field(
        default=1,
        ge=1,
        le=MAX_RANKS,
        description="Prefill context parallel size. Must be 1: no released engine stores its KV"
        " that way.",
        json_schema_extra=_IDENTITY,
    )


# No list-map: its key would need a default on the server.
_ONE_RATE_PER_LENGTH = rule(
    "self.all(a, self.exists_one(b, (has(a.tokens) ? a.tokens : 0) =="
    " (has(b.tokens) ? b.tokens : 0)))",
    "two rates for one prompt length (tokens): keep one",
)


class PrefillRate(Model):
    """The prefill rate at one prompt length."""

    tokens: Integer = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Prompt length, in tokens, at which the rate was measured. Between two lengths"
        " the rate is interpolated.",
        json_schema_extra=extra(Change.LIVE, reader_default=True),
    )
    tokens_per_second: Integer = Field(
        ge=1,
        le=1_000_000_000,
        description="Tokens that one engine (all its ranks together) prefills in a second.",
        json_schema_extra=_LIVE,
    )


_POOL_RULES = [
    rule(
        "self.parallelism.prefillContext == 1",
        "parallelism.prefillContext must be 1: no released engine stores its KV that way",
    ),
    rule(
        "(has(self.parallelism.tensor) ? self.parallelism.tensor : self.ranks)"
        " * self.parallelism.pipeline * self.parallelism.prefillContext == self.ranks",
        "parallelism.tensor (default: ranks) x pipeline x prefillContext must be ranks",
    ),
    rule(
        "(has(self.parallelism.tensor) ? self.parallelism.tensor : self.ranks)"
        " % self.parallelism.decodeContext == 0",
        "parallelism.decodeContext must divide parallelism.tensor",
    ),
    rule(
        "self.striping != 'Shard' || (self.parallelism.pipeline == 1 &&"
        " self.parallelism.decodeContext == 1)",
        "striping Shard needs pure tensor parallelism: set pipeline and decodeContext to 1",
    ),
    rule(
        "self.engine.connector != 'LMCacheInProcess' || (self.parallelism.pipeline == 1 &&"
        " self.parallelism.decodeContext == 1)",
        "engine.connector LMCacheInProcess needs pure tensor parallelism: set pipeline and"
        " decodeContext to 1",
    ),
    rule(
        "self.engine.adapter != 'Stock' || (self.engine.connector == 'LMCacheMP' &&"
        " (self.striping == 'Shard' || self.ranks == 1))",
        "engine.adapter Stock works with connector LMCacheMP, and striping Shard or one rank, only:"
        " write Plugin",
    ),
]


class Pool(Model):
    model_config = ConfigDict(json_schema_extra=extra(rules=_POOL_RULES))

    ranks: Integer = Field(
        ge=1,
        le=MAX_RANKS,
        description="W, the number of workers of one engine, and of Valkeys of the tier.",
        json_schema_extra=extra(
            Change.REFUSED,
            rules=[
                rule(
                    "self == oldSelf",
                    "immutable: another number of ranks is another tier; apply one with another"
                    " name, move the engines to it, then delete this one (one that was refused and"
                    " has no ranks: delete it and apply it again)",
                )
            ],
        ),
    )
    striping: Striping = Field(
        default=Striping.HASH,
        description="How chunks spread over the Valkeys. Hash: each chunk on one rank, chosen by"
        " its hash (any model; one LMCache server for each engine). Shard: each engine rank keeps"
        " its own heads in its own Valkey (one LMCache server per rank).",
        json_schema_extra=extra(
            Change.REFUSED,
            rules=[
                rule(
                    "self == oldSelf",
                    "immutable: another striping is another tier; apply one with another name,"
                    " move the engines to it, then delete this one (one that was refused and has no"
                    " ranks: delete it and apply it again)",
                )
            ],
        ),
    )
    parallelism: Parallelism = Field(
        default_factory=Parallelism, description="How one engine is split over its ranks."
    )
    chunk_tokens: Integer = Field(
        default=256,
        ge=MIN_CHUNK_TOKENS,
        le=65536,
        description="Tokens of one chunk, the unit that engines store. LMCache's --chunk-size.",
        json_schema_extra=_IDENTITY,
    )
    prefill_rate: list[PrefillRate] = Field(
        min_length=1,
        max_length=16,
        description="How fast one engine recomputes, by prompt length. One entry is enough;"
        " prefill slows down with length, so that several judge better.",
        json_schema_extra=extra(Change.LIVE, rules=[_ONE_RATE_PER_LENGTH]),
    )
    hit_latency: Duration | None = Field(
        default=None,
        description="Waiting part of T0, the time that a hit costs whatever its length: lookup,"
        " scheduling. Not given is not zero: the verdict stays Unknown.",
        json_schema_extra=_AT_MOST_AN_HOUR,
    )
    hit_engine_time: Duration | None = Field(
        default=None,
        description="The other part of T0: time in which a hit holds the GPU, whatever its length.",
        json_schema_extra=_AT_MOST_AN_HOUR,
    )
    max_engines: Integer = Field(
        default=8,
        ge=1,
        le=1024,
        description="Most engines that use the tier at once. Sizes connections, the memory kept"
        " for their buffers, and timeouts.",
        json_schema_extra=_LIVE,
    )
    engine: Engine = Field(default_factory=Engine, description="What the engines run.")


class LengthQuantile(Model):
    """One point of a distribution of lengths."""

    quantile: Decimal = Field(
        description='A decimal in quotes, above 0 and at most 1, such as "0.5".',
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DECIMAL_PATTERN}') ||"
                    " (double(self) > 0.0 && double(self) <= 1.0)",
                    "above 0 and at most 1",
                )
            ],
        ),
    )
    tokens: Integer = Field(
        ge=1,
        le=100_000_000,
        description="Length in tokens that this share of requests does not exceed.",
        json_schema_extra=_LIVE,
    )


_RISING = rule(
    "self.all(a, self.all(b,"
    f" !a.quantile.matches(r'{DECIMAL_PATTERN}') || !b.quantile.matches(r'{DECIMAL_PATTERN}') ||"
    " double(a.quantile) >= double(b.quantile) || a.tokens <= b.tokens))",
    "tokens must not fall as the quantile rises",
)


class Workload(Model):
    hit_tokens: list[LengthQuantile] = Field(
        default_factory=list,
        max_length=16,
        description="Lengths of hits: tokens of a request that the tier can serve. The verdict"
        " judges these.",
        json_schema_extra=extra(Change.LIVE, list_keys=["quantile"], rules=[_RISING]),
    )
    prompt_tokens: list[LengthQuantile] = Field(
        default_factory=list,
        max_length=16,
        description="Lengths of whole prompts.",
        json_schema_extra=extra(Change.LIVE, list_keys=["quantile"], rules=[_RISING]),
    )
    requests_per_second: Decimal | None = Field(
        default=None,
        description='Requests that one engine gets in a second, in quotes such as "0.45". With it'
        " the queues of GPU and link are judged, and whether the tier pays under that load.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DECIMAL_PATTERN}') ||"
                    f" (double(self) > 0.0 && double(self) <= {MAX_REQUESTS_PER_SECOND}.0)",
                    f"above 0 and at most {MAX_REQUESTS_PER_SECOND}",
                )
            ],
        ),
    )
    hit_rate: Decimal | None = Field(
        default=None,
        description='Share of prompt tokens that the tier serves, in quotes such as "0.8". Without'
        " it that of the mean lengths, or 1 where only one of them is given.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DECIMAL_PATTERN}') ||"
                    " (double(self) > 0.0 && double(self) <= 1.0)",
                    "above 0 and at most 1",
                )
            ],
        ),
    )
    target_ttft: Duration | None = Field(
        default=None,
        alias="targetTTFT",
        description="Time to first token that requests are promised. A lost rank that stalls a"
        " lookup for longer is a finding.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DURATION_PATTERN}') || (duration(self) >= duration('1ms') &&"
                    " duration(self) <= duration('1h'))",
                    "from 1ms to 1h",
                )
            ],
        ),
    )
    working_set_tokens: Integer | None = Field(
        default=None,
        ge=1,
        le=10**13,
        description="Distinct tokens that hits come back to: prefixes times their lengths. A store"
        " that holds fewer is a finding.",
        json_schema_extra=_LIVE,
    )
