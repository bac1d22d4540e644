"""Manifests of any shape, read without an error: a wrong type is as good as absent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MOST_ITEMS: Final = 256
"""Containers, variables, mounts and so on of one pod that are looked at."""
MOST_WORDS: Final = 4096
LONGEST_TEXT: Final = 65536
"""Characters of one argument, script or file. Longer ones are unreadable."""
LONGEST_REASON: Final = 240
_EMPTY: Final[Mapping[str, Any]] = {}


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is an object, else an empty one."""
    if type(value) is dict or isinstance(value, Mapping):
        return value
    return _EMPTY


def sequence(value: object, *, most: int = MOST_ITEMS) -> Sequence[Any]:
    """The first items of ``value`` if it is a list, else none."""
    return value[:most] if isinstance(value, list | tuple) else ()


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list, others left out."""
    return [each for each in sequence(value) if type(each) is dict or isinstance(each, Mapping)]


def text(value: object) -> str:
    """``value`` if it is text, without the characters that marks are made of, else ''."""
    return value.replace("\0", "") if isinstance(value, str) else ""


def short(value: str, limit: int = 60) -> str:
    """Text for people, on one line."""
    line = " ".join(value[: limit * 4].split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part of a text that the pod does not tell. ``unset``: of a variable that it never sets."""

    shown: str
    why: str
    unset: bool = False

    def __str__(self) -> str:
        return f"{short(self.shown)}, which {self.why}"


@dataclass(slots=True)
class Marks:
    """Stand-ins for unknown parts, so that a text that has some can be cut and joined as any."""

    unknowns: list[Unknown] = field(default_factory=list)

    def mark(self, shown: str, why: str, *, unset: bool = False) -> str:
        self.unknowns.append(Unknown(shown, why, unset))
        return f"\0{len(self.unknowns) - 1}\0"

    def first(self, value: str) -> Unknown | None:
        """What is unknown in ``value``; None if it is known all through."""
        if "\0" not in value:
            return None
        number = value.split("\0", 2)[1]
        known = number.isdecimal() and int(number) < len(self.unknowns)
        return self.unknowns[int(number)] if known else Unknown("a part of it", "was cut")
