"""``spec.admission``: how much is let in while the tier is cold. None of it is identity."""

from enum import StrEnum

from pydantic import Field, JsonValue

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import DECIMAL_PATTERN, Decimal


class AdmissionMode(StrEnum):
    """What limiters do in a storm."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"


def _share(*, above_zero: bool) -> list[dict[str, JsonValue]]:
    least = "double(self) > 0.0" if above_zero else "double(self) >= 0.0"
    words = "above 0 and at most 1" if above_zero else "from 0 to 1"
    return [rule(f"!self.matches(r'{DECIMAL_PATTERN}') || ({least} && double(self) <= 1.0)", words)]


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

    @property
    def enforces(self) -> bool:
        return self.mode is AdmissionMode.ENFORCE


def problems(admission: Admission) -> list[str]:
    """One line per figure that is out of range, naming its field and the fix."""
    figures = (
        ("utilization", admission.utilization, "above 0 and at most 1", "0.8"),
        ("floor", admission.floor, "from 0 to 1", "0.1"),
    )
    return [
        f'spec.admission.{field}: {text} is not {words}; write one such as "{example}"'
        for field, text, words, example in figures
        if not 0 <= float(text) <= 1 or (field == "utilization" and float(text) == 0)
    ]
