"""Unquoted YAML scalars that are not the same to every reader.

YAML 1.1 (PyYAML, which reads tier files here, and most tools written before 2020), YAML 1.2 (newer
tools and editors) and kubectl's own mix of the two disagree about ``yes``, ``0777``, ``1e3``,
``12:34:56`` and others. A tier in Git passes through several of them.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import yaml

from kvtier.api.scalars import shown

_NULLS: Final = ("", "~", "null", "Null", "NULL")
_TRUE: Final = ("true", "True", "TRUE")
_FALSE: Final = ("false", "False", "FALSE")
_KUBECTL_TRUE: Final = (*_TRUE, "y", "Y", "yes", "Yes", "YES", "on", "On", "ON")
_KUBECTL_FALSE: Final = (*_FALSE, "n", "N", "no", "No", "NO", "off", "Off", "OFF")
_SPECIAL: Final = re.compile(r"([-+]?)\.(?:inf|Inf|INF)|(\.(?:nan|NaN|NAN))")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_GO_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<x>[0-9a-fA-F]+)|0[bB](?P<b>[01]+)|0[oO]?(?P<o>[0-7]+)"
    r"|(?P<d>0|[1-9][0-9]*))"
)
_BASES: Final = {"x": 16, "b": 2, "o": 8, "d": 10}
_LONGEST: Final = 64
"""A SHA-256 in hexadecimal may look like a number; nothing longer is meant as one."""
_SURE: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?|true|false")
"""Values whose plain form is the same to every reader."""

# What may be anything but text to one of the readers begins so; nearly all of a tier does not.
_SUSPECT: Final = re.compile(r"[-+.0-9~yYnNtTfFoO]")


def ambiguity(text: str) -> str | None:
    """What is wrong with an unquoted scalar ``text``, and the fix; None if all readers agree."""
    if _SUSPECT.match(text) is None or len(text) > _LONGEST:
        return None
    readings = {
        "YAML 1.1": _yaml_1_1(text),
        "kubectl": kubectl_reading(text),
        "YAML 1.2": _yaml_1_2(text),
    }
    if len({_kind_and_value(reading) for reading in readings.values()}) == 1:
        return None
    return f"unquoted {shown(text)[1:-1]} is {_told(readings)}; {_fix(text, readings)}"


def _told(readings: Mapping[str, Any]) -> str:
    """``511 to YAML 1.1 and kubectl, but 777 to YAML 1.2``."""
    groups: dict[tuple[str, Any], list[str]] = {}
    for reader, reading in readings.items():
        groups.setdefault(_kind_and_value(reading), []).append(reader)
    said = [
        f"{_words(readings[readers[0]])} to {' and '.join(readers)}" for readers in groups.values()
    ]
    return ", but ".join(said)


def _fix(text: str, readings: Mapping[str, Any]) -> str:
    values = {_plain(value) for value in readings.values() if not isinstance(value, str | date)}
    others = [f"or {value}" for value in sorted(values) if _SURE.fullmatch(value) and value != text]
    return " ".join([f'write "{text}"', *others])


def _plain(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return json.dumps(int(value) if whole else value)


def _words(value: Any) -> str:
    if isinstance(value, date):
        return "a date"
    return "text" if isinstance(value, str) else _plain(value)


def _kind_and_value(value: Any) -> tuple[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return type(value).__name__, value
    return "number", "nan" if math.isnan(value) else value


def _yaml_1_1(text: str) -> Any:
    """As PyYAML constructs it."""
    reader = yaml.SafeLoader("")
    tag = reader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    try:
        return reader.construct_object(yaml.ScalarNode(tag, text))
    except yaml.YAMLError:
        return text
    except ValueError:  # a date that no calendar has
        return date.min


def _yaml_1_2(text: str) -> Any:
    """The core schema of YAML 1.2.2, section 10.3.2."""
    found, value = _constant(text, true=_TRUE, false=_FALSE)
    if found:
        return value
    if re.fullmatch(r"[-+]?[0-9]+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"0o[0-7]+", text):
        return int(text[2:], 8)
    if re.fullmatch(r"0x[0-9a-fA-F]+", text):
        return int(text[2:], 16)
    return float(text) if _FLOAT.fullmatch(text) else text


def kubectl_reading(text: str) -> Any:
    """As kubectl 1.37 has it (go.yaml.in/yaml/v2): it knows no base 60 and keeps dates as text."""
    found, value = _constant(text, true=_KUBECTL_TRUE, false=_KUBECTL_FALSE)
    if found:
        return value
    digits = text if text.startswith(".") else text.replace("_", "")
    if text[0] not in "-+.0123456789":
        return text
    if match := _GO_INTEGER.fullmatch(digits):
        [(base, number)] = ((name, match[name]) for name in _BASES if match[name])
        return int(match["sign"] + number, _BASES[base])
    if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        return float(digits)
    return text


def _constant(text: str, *, true: tuple[str, ...], false: tuple[str, ...]) -> tuple[bool, Any]:
    if text in _NULLS:
        return True, None
    if text in true or text in false:
        return True, text in true
    if match := _SPECIAL.fullmatch(text):
        return True, math.nan if match[2] else float(f"{match[1]}inf")
    return False, None
