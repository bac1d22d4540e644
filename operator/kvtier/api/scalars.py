"""Strings that carry a number: Kubernetes quantities, durations, and decimals.

Each kind has one pattern (shared by the models and the CRD's schema, so written for RE2 too) and
one parser into plain numbers.
"""

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"
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


def _as_quantity_text(value: Any) -> Any:
    # YAML reads a bare 64 as an integer; Kubernetes takes it as a quantity too. A bool is an int
    # to Python and must not pass.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


Quantity = Annotated[
    str, BeforeValidator(_as_quantity_text), Field(pattern=QUANTITY_PATTERN, max_length=32)
]
Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32)]
Decimal = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=16)]
