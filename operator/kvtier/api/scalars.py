"""Strings that carry a number: Kubernetes quantities, durations, and decimals.

Each kind has one pattern (shared by the models and the CRD's schema, so written for RE2 too) and
one parser into plain numbers.
"""

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"
# Without fractions below what the kubelet can hold: whole millicores, and bytes by unit.
CPU_PATTERN = r"^([0-9]{1,4}(\.[0-9]{1,3})?|[0-9]{1,7}m)$"
MEMORY_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,6})?(k|Ki|M|Mi|G|Gi|T|Ti)?$"
RATE_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,6})?(k|Ki|M|Mi|G|Gi|T|Ti)?$"
# Few digits, so that no conversion overflows (the API server's durations end at 292 years).
DURATION_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,6})?(ns|us|ms|s|m|h))+$"
DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?$"

_QUANTITY_FACTORS = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
}
_DURATION_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_quantity(text: str | int) -> Fraction:
    """The exact value of a Kubernetes quantity such as ``64Gi``, ``25G``, ``500m`` or ``1024``.

    Raises ValueError for anything else (``64GB``, ``-5Gi``, ``1e3``, an empty string).
    """
    match = re.fullmatch(QUANTITY_PATTERN[1:-1], str(text), flags=re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write a number with a unit such as 64Gi")
    suffix = match.group(2) or ""
    number = str(text)[: len(str(text)) - len(suffix)]
    return Fraction(number) * _QUANTITY_FACTORS[suffix]


def parse_duration(text: str) -> float:
    """Seconds of a Go-style duration such as ``330ms``, ``50us`` or ``1h30m``.

    Raises ValueError for anything else (``1d``, ``0.33``, ``PT5S``).
    """
    if re.fullmatch(DURATION_PATTERN[1:-1], text, flags=re.ASCII) is None:
        raise ValueError(f"{text!r} is not a duration: write a number with a unit such as 330ms")
    return sum(
        float(number) * _DURATION_SECONDS[unit]
        for number, _, unit in re.findall(r"([0-9]+(\.[0-9]+)?)(ns|us|ms|s|m|h)", text)
    )


def _whole_number(value: Any) -> Any:
    # The API server takes neither "5" nor true for an integer, but 5.0 it does.
    if isinstance(value, bool | str):
        raise ValueError(f"{value!r} is not a whole number; write a number without quotes")
    return value


def _text(*, pattern: str, form: str, max_length: int, numbers: bool = False) -> BeforeValidator:
    """A check of the form, whose message shows an example instead of the pattern.

    ``numbers``: a bare integer is taken as text too, as Kubernetes does for quantities.
    """

    def check(value: Any) -> Any:
        whole = numbers and isinstance(value, int) and not isinstance(value, bool)
        text = str(value) if whole else value
        if not isinstance(text, str):
            raise ValueError(f"{value!r} is not a string; write {form}")
        if len(text) > max_length or re.fullmatch(pattern[1:-1], text, flags=re.ASCII) is None:
            raise ValueError(f"{text[:max_length]!r} has the wrong form; write {form}")
        return text

    return BeforeValidator(check)


_QUANTITY_SCHEMA: dict[str, JsonValue] = {"x-kubernetes-int-or-string": True}

Integer = Annotated[int, BeforeValidator(_whole_number)]
Cpu = Annotated[
    str,
    _text(pattern=CPU_PATTERN, form="cores such as 1, 0.5 or 500m", max_length=16, numbers=True),
    Field(pattern=CPU_PATTERN, max_length=16, json_schema_extra=_QUANTITY_SCHEMA),
]
Memory = Annotated[
    str,
    _text(
        pattern=MEMORY_PATTERN, form="bytes with a unit such as 64Gi", max_length=32, numbers=True
    ),
    Field(pattern=MEMORY_PATTERN, max_length=32, json_schema_extra=_QUANTITY_SCHEMA),
]
BitRate = Annotated[
    str,
    _text(pattern=RATE_PATTERN, form="bits per second such as 25G", max_length=32, numbers=True),
    Field(pattern=RATE_PATTERN, max_length=32, json_schema_extra=_QUANTITY_SCHEMA),
]
Duration = Annotated[
    str,
    _text(pattern=DURATION_PATTERN, form="a duration such as 330ms or 50us", max_length=16),
    Field(pattern=DURATION_PATTERN, max_length=16),
]
Decimal = Annotated[
    str,
    _text(pattern=DECIMAL_PATTERN, form='a decimal in quotes such as "0.5"', max_length=16),
    Field(pattern=DECIMAL_PATTERN, max_length=16),
]
