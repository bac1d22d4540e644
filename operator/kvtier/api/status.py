"""The status of a tier, as a schema: what ``kubectl explain`` shows and the API server bounds.

Nothing reads these models at run time: a status is written as a plain mapping.
"""

from typing import Literal

from pydantic import Field

from kvtier.api.base import MAX_RANKS, Model, extra
from kvtier.api.conditions import MAX_MESSAGE

MAX_FINDINGS = 32


class ConditionStatus(Model):
    """One condition, in the usual Kubernetes form."""

    type: str = Field(
        min_length=1,
        max_length=64,
        description="SpecValid, StoreReady, GenerationCurrent, Ready, PlacementAccepted,"
        " EarningItsKeep, Warm or AdmissionEnforced.",
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9]+$",
        description="One word; the runbook has a section of this name.",
    )
    message: str = Field(max_length=MAX_MESSAGE, description="What it is, for a person.")
    last_transition_time: str = Field(
        description="When status changed last.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int = Field(
        ge=0, description="metadata.generation of the spec that this is about."
    )


class FindingStatus(Model):
    """One thing that speaks against the tier."""

    severity: Literal["Error", "Warning"] = Field(
        description="An Error makes PlacementAccepted False."
    )
    reason: str = Field(
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9]+$",
        description="One word; the runbook has a section of this name.",
    )
    message: str = Field(max_length=MAX_MESSAGE, description="What it is, with figures.")
    blocks: bool | None = Field(
        default=None,
        description="No link can change it: with onReject Block a new tier is not made.",
    )


class RankStatus(Model):
    """One rank."""

    rank: int = Field(ge=0, le=MAX_RANKS - 1, description="Number of the rank, from 0.")
    ready: bool = Field(description="Its pod is Ready.")
    node: str | None = Field(default=None, max_length=253, description="Node that it runs on.")
    domain: str | None = Field(
        default=None,
        max_length=127,
        description="The node's place in the nearest declared domain above the node.",
    )
    started_at: str | None = Field(
        default=None,
        description="When its Valkey started, empty.",
        json_schema_extra={"format": "date-time"},
    )


class LengthStatus(Model):
    """Fetch against recompute for one hit length."""

    tokens: int = Field(ge=0, description="Length of the hit.")
    recompute_seconds: float = Field(ge=0, description="Time to prefill so many tokens.")
    fetch_seconds: float | None = Field(
        default=None, ge=0, description="Time to fetch them; absent while link or T0 is unknown."
    )
    wins: bool | None = Field(default=None, description="The fetch is faster.")
    fits: bool | None = Field(
        default=None,
        description="False where the store holds fewer tokens than this: no such hit is ever found"
        " whole, whatever wins says. Absent otherwise.",
    )


class BreakEvenStatus(Model):
    """What has to hold for the tier to pay."""

    bytes_per_token: int = Field(
        ge=0, description="Bytes that each token adds to what is stored and moved (wire)."
    )
    logical_bytes_per_token: int = Field(ge=0, description="The same without replication.")
    constant_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Bytes of a hit beside those per token, once its sliding windows are full;"
        " absent when there are none.",
    )
    chunk_bytes: int = Field(ge=0, description="Bytes of one chunk on the wire.")
    bytes_per_second: int = Field(
        ge=0, description="B*, the bandwidth above which a fetch can win."
    )
    minimum_hit_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Fewest tokens for which a fetch wins: longer ones too, unless pool.prefillRate"
        " rises with length (see perLength). Absent when there is no such length or it is unknown.",
    )
    observed_tokens_per_second: int | None = Field(
        default=None,
        ge=0,
        description="R of one engine by the engines' own metrics, for the prompts of which"
        " pool.prefillRate is least; two digits. Absent within 25 % of that, or while it is not"
        " known. Greater: bytesPerSecond is by this, and R is at least this. Smaller: R is at most"
        " this, and bytesPerSecond is by pool.prefillRate.",
    )
    per_length: list[LengthStatus] = Field(
        default_factory=list,
        max_length=64,
        description="One row per length.",
        json_schema_extra=extra(list_keys=["tokens"]),
    )


class MeasuredStatus(Model):
    """The link, and where its figures came from."""

    bytes_per_second: int | None = Field(
        default=None, ge=0, description="B, into one engine's node from all ranks."
    )
    round_trip_seconds: float | None = Field(default=None, ge=0, description="Round-trip time.")
    evidence: Literal["Declared", "Probed", "Observed"] | None = Field(
        default=None, description="Where the figures came from."
    )
    at: str | None = Field(
        default=None,
        description="When they were measured.",
        json_schema_extra={"format": "date-time"},
    )
    ratio: float | None = Field(default=None, ge=0, description="B/B*; two digits.")
    node: str | None = Field(
        default=None, max_length=253, description="The engine's node that it was measured from."
    )
    lower_bound: bool | None = Field(
        default=None,
        description="The probe's own CPU was the limit: the link gives at least this.",
    )


class GenerationStatus(Model):
    """One generation of KV."""

    id: str = Field(
        min_length=12, max_length=12, pattern="^[0-9a-f]{12}$", description="Its identity's hash."
    )
    state: str = Field(
        max_length=32,
        description="Live: the spec names it. Pending: made for engines that run another identity."
        " Draining: still readable. Fenced, Contaminated: no access, its keys are being deleted."
        " Purged: it has none.",
    )
    cause: Literal["Drained", "SaltChanged", "Contaminated", "PoolDrifted"] | None = Field(
        default=None, description="Why it lost its access."
    )
    since: str | None = Field(
        default=None,
        description="When it came into this state.",
        json_schema_extra={"format": "date-time"},
    )
    message: str | None = Field(
        default=None, max_length=MAX_MESSAGE, description="What has to happen until its next state."
    )


class AdmissionStatus(Model):
    """What may be let in while nothing hits. Limiters take their figures from here."""

    state: Literal["Open", "Storm", "Recovering"] = Field(
        description="Open: no limit. Storm: so few hits that engines get more work than they can"
        " do, or a rank is lost. Recovering: hits come back."
    )
    reason: str | None = Field(
        default=None, max_length=64, description="Why it is not Open; Planned: kvtier asked for it."
    )
    since: str | None = Field(
        default=None,
        description="When it came into this state.",
        json_schema_extra={"format": "date-time"},
    )
    engine_tokens_per_second: int | None = Field(
        default=None,
        ge=0,
        description="R: what one engine prefills at the mean prompt; two digits.",
    )
    mean_prompt_tokens: int | None = Field(
        default=None, ge=0, description="Tokens of a prompt on average; two digits."
    )
    zero_hit_tokens_per_second: int | None = Field(
        default=None,
        ge=0,
        description="Prompt tokens that all Ready engines can take while nothing hits:"
        " utilization x engines x R; two digits. Absent while no engine is Ready.",
    )
    storm_factor: float | None = Field(
        default=None,
        ge=0,
        description="How many times the prefill work of now a cold tier means: 1 / (1 - hit rate);"
        " two digits.",
    )
    max_queued_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Tokens that may wait in engines: workload.targetTTFT x engines x R; two"
        " digits. Absent without targetTTFT.",
    )
    required_engines: int | None = Field(
        default=None,
        ge=0,
        description="Engines that the offered load needs while nothing hits. Absent while no load"
        " is known.",
    )


class KVCacheTierStatus(Model):
    """What kvtier last saw and did. Numbers that move all the time are in metrics instead."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="metadata.generation that this status is about."
    )
    conditions: list[ConditionStatus] = Field(
        default_factory=list,
        max_length=16,
        description="Ready sums up SpecValid, StoreReady and GenerationCurrent.",
        json_schema_extra=extra(list_keys=["type"]),
    )
    findings: list[FindingStatus] = Field(
        default_factory=list,
        max_length=MAX_FINDINGS,
        description="What the checks found, the heaviest first. They are of the spec that was"
        " accepted last.",
    )
    ranks: str | None = Field(
        default=None, max_length=16, description="Ready ranks of all ranks, such as 8/8."
    )
    rank_states: list[RankStatus] = Field(
        default_factory=list,
        max_length=MAX_RANKS,
        description="Each rank.",
        json_schema_extra=extra(list_keys=["rank"]),
    )
    domain: str | None = Field(
        default=None,
        max_length=127,
        description="Where the ranks belong: what the first Ready engines chose, or"
        " store.nodeSelector names. Absent until then.",
    )
    break_even: BreakEvenStatus | None = Field(
        default=None, description="What has to hold for the tier to pay."
    )
    measured: MeasuredStatus | None = Field(
        default=None, description="The link that the verdict used. Absent until it is measured."
    )
    verdict: Literal["Unknown", "Pays", "PaysWhenLong", "PaysUnderLoad", "NeverPays"] | None = (
        Field(
            default=None,
            description="Does the tier pay? Unknown until it is measured. PaysWhenLong: above"
            " minimumHitTokens only. PaysUnderLoad: from a request rate on.",
        )
    )
    generations: list[GenerationStatus] = Field(
        default_factory=list,
        max_length=16,
        description="Generations of KV that have access or memory.",
        json_schema_extra=extra(list_keys=["id"]),
    )
    admission: AdmissionStatus | None = Field(
        default=None, description="What may be let in while the tier is cold."
    )
    engine_secret: str | None = Field(
        default=None, max_length=253, description="Secret that engines mount."
    )
