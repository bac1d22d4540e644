"""Strings that carry a number: Kubernetes quantities, durations, and decimals.

Each kind has one pattern (shared by the models and the CRD's schema, so written for RE2 too) and
one parser into plain numbers.
"""

import re
import reprlib
from dataclasses import dataclass
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

IMAGE_PATTERN = (
    r"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?"
    r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[a-f0-9]{64})?$"
)
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
VLLM_VERSION_PATTERN = r"^[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?$"
DOMAIN_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
FORM_KEY = "x-kvtier-form"
"""Schema key of a string's form; the CRD has it as a rule, whose message is readable."""

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


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60
_REPR.maxlevel = 2


def shown(value: Any) -> str:
    """``value`` as an error shows it: one line of bounded length."""
    text = _REPR.repr(value).replace("\n", " ")
    return text if len(text) <= 120 else f"{text[:119]}…"


def _whole_number(value: Any) -> Any:
    # The API server takes neither "5" nor true for an integer, but 5.0 it does.
    if isinstance(value, bool | str):
        raise ValueError(f"{shown(value)} is not a whole number; write a number without quotes")
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a string: its pattern (for RE2 too), an example for people, its bound.

    ``numbers``: a bare integer is taken as text too, as Kubernetes does for quantities. ``units``:
    those that a number without one is likely to lack. ``quotable``: a number has the text that was
    meant; 0.10, a version, has not.
    """

    pattern: str
    example: str
    max_length: int
    numbers: bool = False
    units: tuple[str, ...] = ()
    quotable: bool = True

    def validator(self) -> BeforeValidator:
        return BeforeValidator(self._check)

    def field(self) -> Any:
        schema: dict[str, JsonValue] = {
            FORM_KEY: {"pattern": self.pattern, "message": f"write {self.example}"}
        }
        if self.numbers:
            schema["x-kubernetes-int-or-string"] = True
        return Field(max_length=self.max_length, json_schema_extra=schema)

    def _check(self, value: Any) -> Any:
        whole = self.numbers and isinstance(value, int) and not isinstance(value, bool)
        text = str(value) if whole else value
        if not isinstance(text, str):
            raise ValueError(f"{shown(value)} {self._meant(value)}")
        if not self._fits(text):
            raise ValueError(f"{shown(text)} has the wrong form; write {self.example}")
        return text

    def _meant(self, value: Any) -> str:
        """What is wrong with a value that is no text, and what was probably meant."""
        meant = [f"{value}{unit}" for unit in self.units] or [f"{value}"]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.numbers or not self.quotable or not number or not all(map(self._fits, meant)):
            return f"is not a string; write {self.example}"
        if self.units:
            return f"has no unit; write {' or '.join(meant)}"
        return f'is a number, not a string; write it in quotes: "{meant[0]}"'

    def _fits(self, text: str) -> bool:
        fits = len(text) <= self.max_length
        return fits and re.fullmatch(self.pattern[1:-1], text, flags=re.ASCII) is not None


_CPU = Form(CPU_PATTERN, "cores such as 1, 0.5 or 500m", 16, numbers=True)
_MEMORY = Form(MEMORY_PATTERN, "bytes such as 64Gi", 32, numbers=True)
_BIT_RATE = Form(RATE_PATTERN, "bits per second such as 25G", 32, numbers=True)
_DURATION = Form(DURATION_PATTERN, "a duration such as 330ms or 50us", 16, units=("ms", "s"))
_DECIMAL = Form(DECIMAL_PATTERN, 'a decimal in quotes such as "0.5"', 16)
_VLLM_VERSION = Form(
    VLLM_VERSION_PATTERN, 'a release in quotes such as "0.14.0"', 16, quotable=False
)
_IMAGE = Form(IMAGE_PATTERN, "an image such as docker.io/valkey/valkey:9.1", 512)
_SUBDOMAIN = Form(
    SUBDOMAIN_PATTERN, "an object's name: lower-case letters, digits, '-' and '.'", 253
)
_DOMAIN_NAME = Form(DOMAIN_NAME_PATTERN, "a short name such as rack: lower-case letters", 63)

Integer = Annotated[int, BeforeValidator(_whole_number)]
Cpu = Annotated[str, _CPU.validator(), _CPU.field()]
Memory = Annotated[str, _MEMORY.validator(), _MEMORY.field()]
BitRate = Annotated[str, _BIT_RATE.validator(), _BIT_RATE.field()]
Duration = Annotated[str, _DURATION.validator(), _DURATION.field()]
Decimal = Annotated[str, _DECIMAL.validator(), _DECIMAL.field()]
VllmVersion = Annotated[str, _VLLM_VERSION.validator(), _VLLM_VERSION.field()]
Image = Annotated[str, _IMAGE.validator(), _IMAGE.field()]
Subdomain = Annotated[str, _SUBDOMAIN.validator(), _SUBDOMAIN.field()]
DomainName = Annotated[str, _DOMAIN_NAME.validator(), _DOMAIN_NAME.field()]
