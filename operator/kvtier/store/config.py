"""Comparing what ``CONFIG GET`` answers with what was intended.

A server writes values its own way: ``1gb`` comes back in bytes, ``client-output-buffer-limit``
with all classes and under the old word ``slave``. Compared as text, such settings would differ
for ever and be set again at every reconcile.
"""

import re
from collections.abc import Mapping

OUTPUT_BUFFER_LIMIT = "client-output-buffer-limit"

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1024,
    "m": 1000**2,
    "mb": 1024**2,
    "g": 1000**3,
    "gb": 1024**3,
}
_NUMBER = re.compile(r"(-?[0-9]+)(b|k|kb|m|mb|g|gb|%)?", flags=re.ASCII)


def canonical(value: str) -> str:
    """One spelling for equal values: bytes for sizes, lower case, single spaces."""
    return " ".join(_canonical_word(word) for word in value.lower().split())


def _canonical_word(word: str) -> str:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return "replica" if word == "slave" else word
    number, unit = int(match.group(1)), match.group(2) or ""
    return f"{number}%" if unit == "%" else str(number * _UNITS[unit])


def output_buffer_limits(value: str) -> dict[str, tuple[str, ...]]:
    """Class of client -> (hard bytes, soft bytes, soft seconds), canonical.

    Raises ValueError unless the value is a list of such groups of four words.
    """
    words = canonical(value).split()
    if len(words) % 4:
        raise ValueError(f"{value!r} is not a list of <class> <hard> <soft> <seconds>")
    return {words[i]: tuple(words[i + 1 : i + 4]) for i in range(0, len(words), 4)}


def same(name: str, want: str, have: str) -> bool:
    """Whether ``have`` is what setting ``want`` leads to.

    Classes of ``client-output-buffer-limit`` that ``want`` does not name keep their values.
    """
    if name == OUTPUT_BUFFER_LIMIT:
        return output_buffer_limits(want).items() <= output_buffer_limits(have).items()
    return canonical(want) == canonical(have)


def differing(
    intent: Mapping[str, str], readback: Mapping[str, str]
) -> dict[str, tuple[str, str | None]]:
    """Settings that are not as intended: name -> (wanted, what the server has).

    What the server has is None for a name it does not know.
    """
    return {
        name: (want, readback.get(name))
        for name, want in intent.items()
        if name not in readback or not same(name, want, readback[name])
    }
