"""``spec.rollout``: how one generation of KV follows another. None of it is identity."""

from enum import StrEnum

from pydantic import Field

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import DURATION_PATTERN, Duration, Integer, parse_duration

MAX_DRAIN_SECONDS = 168 * 3600
_LIVE = extra(Change.LIVE)


class OnPoolDrift(StrEnum):
    """What follows when engines that mount no Secret of the tier run another identity."""

    ALERT = "Alert"
    NEW_GENERATION = "NewGeneration"
    FENCE = "Fence"


class Revocation(StrEnum):
    """What becomes of tokens that ``credentialEpoch`` replaced."""

    DRAINED = "Drained"
    IMMEDIATE = "Immediate"


class Rollout(Model):
    on_pool_drift: OnPoolDrift = Field(
        default=OnPoolDrift.ALERT,
        description="What happens when engines labelled with the tier run another identity than it"
        " names and mount no Secret of it. Alert says so and changes nothing. NewGeneration makes a"
        " generation of what they run, if only revision, tokenizer revision or KV dtype differ."
        " Fence takes the keys from the generation that the tier names once such engines have been"
        " Ready for drainTimeout, until they are gone.",
        json_schema_extra=_LIVE,
    )
    drain_timeout: Duration = Field(
        default="1h",
        description="How long the old generation may still be read and written once a Ready engine"
        " uses the new one, at most 168h. With no engine on the new one the old is kept, and the"
        " time begins anew. 0s fences it as soon as one uses the new. So long, too, work tokens"
        " that credentialEpoch replaced.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DURATION_PATTERN}') || duration(self) <= duration('168h')",
                    "at most 168h",
                )
            ],
        ),
    )
    credential_epoch: Integer = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Raise it by one to give every generation a new token, under the same keys:"
        " cached KV stays.",
        json_schema_extra=_LIVE,
    )
    revocation: Revocation = Field(
        default=Revocation.DRAINED,
        description="What becomes of the tokens that credentialEpoch replaced. Drained: they work"
        " for drainTimeout more, then find nothing. Immediate, for a leaked token: they are"
        " switched off and their sessions ended at once; to an engine that still has one every"
        " rank is lost.",
        json_schema_extra=_LIVE,
    )

    @property
    def drain_seconds(self) -> float:
        return parse_duration(self.drain_timeout)
