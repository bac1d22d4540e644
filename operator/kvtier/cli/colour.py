"""Colours, laid over the finished text of a screen: without them it is the same text."""

import re
from collections.abc import Callable
from typing import Final

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_END: Final = "\x1b[0m"

_VERDICTS: Final = {
    "Pays": _GREEN,
    "PaysWhenLong": _GREEN,
    "PaysUnderLoad": _GREEN,
    "NeverPays": _RED,
    "Unknown": _YELLOW,
}
_STATES: Final = {
    "Storm": _RED,
    "Contaminated": _RED,
    "Error": _RED,
    "Not ready": _RED,
    "False": _RED,
    "Recovering": _YELLOW,
    "Warning": _YELLOW,
    "Fenced": _YELLOW,
    "Draining": _YELLOW,
    "Pending": _YELLOW,
    "Paused": _YELLOW,
    "Ready": _GREEN,
    "Live": _GREEN,
    "True": _GREEN,
}
_WORDS: Final = _STATES | _VERDICTS
_EITHER: Final = "|".join(sorted(_WORDS, key=len, reverse=True))

_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}{_END}"


def _word(match: re.Match[str]) -> str:
    before, word = match.groups()
    return f"{before}{_paint(word, _WORDS[word])}"


_RULES: Final[tuple[_Rule, ...]] = (
    # The head of a table, and of a block.
    (re.compile(r"^ *[A-Z][A-Z ]{3,}$", re.M), lambda match: _paint(match[0], _BOLD)),
    (re.compile(r"^(?:Admission|Findings|Last changes|Next):?(?=$| )", re.M),
     lambda match: _paint(match[0], _BOLD)),
    (re.compile(r"^(Verdict: )(\w+)", re.M),
     lambda match: match[1] + _paint(match[2], _VERDICTS.get(match[2], _BOLD))),
    (re.compile(rf"^()({_EITHER})(?=: )", re.M), _word),
    (re.compile(rf"^(  )({_EITHER})(?= [A-Z])", re.M), _word),
    # A state in a table or at its name, a change's severity, a condition's status.
    (re.compile(rf"(?<=\S)(  +)({_EITHER})(?=  |$| \()", re.M), _word),
    (re.compile(rf"^( +\d+ (?:s|min|h|d)  )({_EITHER})(?= [A-Z])", re.M), _word),
    (re.compile(rf"^( +\d+ (?:s|min|h|d)  \w+ is )({_EITHER})(?= \()", re.M), _word),
    (re.compile(r"(?<=\S)(  +)(no)(?=  |$)", re.M),
     lambda match: match[1] + _paint(match[2], _RED)),
    (re.compile(r"^  \S*runbooks\S*#\S+$", re.M), lambda match: _paint(match[0], _DIM)),
)  # fmt: skip


def coloured(text: str) -> str:
    """``text`` with the escape sequences of ANSI colours."""
    for pattern, paint in _RULES:
        text = pattern.sub(paint, text)
    return text


def of_line(text: str, *, warns: bool) -> str:
    """One line of ``kvtier watch``: its time, and the rest in yellow where it warns."""
    at, _, said = text.partition("  ")
    return f"{_paint(at, _DIM)}  {_paint(said, _YELLOW) if warns else said}"
