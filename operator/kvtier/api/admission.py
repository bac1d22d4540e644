"""``spec.admission``: how much is let in while the tier is cold. None of it is identity."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, JsonValue

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import DECIMAL_PATTERN, Decimal, Integer, Subdomain

MAX_ROUTES = 8
MAX_REPLICAS = 1000


class AdmissionMode(StrEnum):
    """What limiters do in a storm."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"


def _share(*, above_zero: bool) -> list[dict[str, JsonValue]]:
    least = "double(self) > 0.0" if above_zero else "double(self) >= 0.0"
    words = "above 0 and at most 1" if above_zero else "from 0 to 1"
    return [rule(f"!self.matches(r'{DECIMAL_PATTERN}') || ({least} && double(self) <= 1.0)", words)]


class EnvoyGateway(Model):
    routes: list[Annotated[Subdomain, Field(description="Name of an HTTPRoute.")]] = Field(
        min_length=1,
        max_length=MAX_ROUTES,
        description="The HTTPRoutes that lead to the engines, in the tier's namespace.",
        json_schema_extra=extra(Change.LIVE) | {"x-kubernetes-list-type": "set"},
    )
    replicas: Integer = Field(
        ge=1,
        le=MAX_REPLICAS,
        description="How many Envoys serve these routes. Each of them holds its own part of the"
        " limit: too small a number lets too much in.",
        json_schema_extra=extra(Change.LIVE),
    )


class Admission(Model):
    mode: AdmissionMode = Field(
        default=AdmissionMode.OBSERVE,
        description="What the limiters do in a storm. Observe lets everything in and tells what it"
        " would have refused. Enforce answers 429 above the limit.",
        json_schema_extra=extra(Change.LIVE),
    )
    utilization: Decimal = Field(
        default="0.8",
        description="Share of what all Ready engines can prefill that is let in while nothing hits,"
        ' in quotes such as "0.8".',
        json_schema_extra=extra(Change.LIVE, rules=_share(above_zero=True)),
    )
    floor: Decimal = Field(
        default="0.1",
        description="The limit never falls below this share of the highest rate of prompt tokens"
        ' that was offered, in quotes such as "0.1".',
        json_schema_extra=extra(Change.LIVE, rules=_share(above_zero=False)),
    )

    envoy_gateway: EnvoyGateway | None = Field(
        default=None,
        description="With mode Enforce, the controller has Envoy Gateway hold the limit too, in"
        " requests per second, by a BackendTrafficPolicy that is there only in a storm. Needs"
        " envoyGateway.enabled in the chart.",
        json_schema_extra=extra(Change.LIVE),
    )

    @property
    def enforces(self) -> bool:
        return self.mode is AdmissionMode.ENFORCE


def problems(admission: Admission) -> list[str]:
    """One line per figure that is out of range, naming its field and the fix."""
    figures = (
        ("utilization", admission.utilization, "above 0 and at most 1", "0.8"),
        ("floor", admission.floor, "from 0 to 1", "0.1"),
    )
    found = [
        f'spec.admission.{field}: {text} is not {words}; write one such as "{example}"'
        for field, text, words, example in figures
        if not 0 <= float(text) <= 1 or (field == "utilization" and float(text) == 0)
    ]
    gateway = admission.envoy_gateway
    twice = (
        sorted({each for each in gateway.routes if gateway.routes.count(each) > 1})
        if gateway
        else []
    )
    return found + [
        f"spec.admission.envoyGateway.routes: {name!r} is there twice; name each HTTPRoute once"
        for name in twice
    ]
