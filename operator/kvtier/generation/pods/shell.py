"""The commands of a shell script, as far as they can be told without running it.

What is read is a part of POSIX: quotes, expansions, assignments, ``eval``, ``set --``, ``source``.
What depends on the run (output of commands, loops, arithmetic) becomes a mark. Bounded in length,
depth and output.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvtier.generation.pods.environment import Variables
from kvtier.generation.pods.lexer import ASSIGNMENT, DECLARE, DEEPEST, NAME, STEP, Reader, TooLong
from kvtier.generation.pods.safe import LONGEST_TEXT

MOST_COMMANDS: Final = 512
_IN_FRONT: Final = frozenset({"then", "else", "do", "elif", "!", "time"})
_OPEN: Final = frozenset({"if", "while", "until", "{"})
_OPEN_LIST: Final = frozenset({"for", "select"})
_CLOSE: Final = frozenset({"fi", "done", "}"})
_CASE_DEPTH: Final = 1024
"""Patterns of ``case`` close brackets that nobody opened."""

ReadFile = Callable[[str], tuple[str, str]]


@dataclass(slots=True)
class Shell:
    """One shell. ``commands``: those that are no assignments, in the order of the text."""

    variables: Variables
    read_file: ReadFile
    is_ours: Callable[[str], bool]
    """Whether a path is in a generation's Secret, whose ``env`` says nothing of the model."""
    positional: list[str] | None = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    depth: int = 0
    nested: int = 0
    over: bool = False
    size: int = 0

    def run(self, script: str) -> None:
        """Read ``script``. Raises TooLong."""
        if len(script) > LONGEST_TEXT or self.nested > DEEPEST:
            raise TooLong
        self.nested += 1
        Reader(self, script).run()
        self.nested -= 1

    def command(self, words: list[str], *, maybe: bool) -> None:
        """One simple command has been read. ``maybe``: it runs only if another failed."""
        self.grow(STEP)
        if self.over:
            return
        while words and words[0] in _IN_FRONT:
            words = words[1:]
        if not words:
            return
        first = words[0]
        if first in _CLOSE:
            self.depth = max(0, self.depth - 1)
        elif first in _OPEN:
            self.depth += 1
            self.command(words[1:], maybe=maybe)
        elif first in ("case", "esac"):
            depth = self.depth + (_CASE_DEPTH if first == "case" else -_CASE_DEPTH)
            self.depth = max(0, depth)
        elif first in _OPEN_LIST:
            self.depth += 1
            if len(words) > 1:
                self._assign(words[1], "", certain=False)
        else:
            self._simple(words, certain=not maybe and not self.depth)

    def _simple(self, words: list[str], *, certain: bool) -> None:
        first, rest = words[0], words[1:]
        settings = rest if first in DECLARE else words
        if all(ASSIGNMENT.match(word) for word in settings if not word.startswith("-")):
            for word in settings:
                if found := ASSIGNMENT.match(word):
                    plain = certain and not found[2]
                    self._assign(found[1], word[found.end() :], certain=plain)
        elif first == "unset":
            for word in rest:
                self._assign(word, "", certain=certain)
        elif first in ("read", "mapfile", "readarray", "getopts"):
            for word in rest:
                self._assign(word, "", certain=False)
        elif first == "set" and "--" in rest:
            self.positional = rest[rest.index("--") + 1 :] if certain else None
        elif first == "shift":
            self.positional = self.positional[1:] if self.positional and certain else None
        elif first in (".", "source"):
            self._source(rest[0] if rest else "", certain=certain)
        elif first == "eval":
            self.run(" ".join(rest))
        else:
            if len(self.commands) >= MOST_COMMANDS:
                raise TooLong
            self.commands.append(words)
            self.over = certain and first in ("exec", "exit") and len(words) > 1

    def _assign(self, name: str, value: str, *, certain: bool) -> None:
        if NAME.fullmatch(name):
            why = "depends on how the script runs"
            mark = self.variables.marks.mark
            self.variables.values[name] = value if certain else mark(f"${name}", why)

    def _source(self, path: str, *, certain: bool) -> None:
        if self.is_ours(path):
            return
        script, why = self.read_file(path) if "\0" not in path else ("", "is unknown")
        if not why and certain:
            self.run(script)
            return
        self.variables.values.clear()
        self.variables.others = f"the script's `source {path}`"

    def grow(self, size: int) -> None:
        """Count what expansions put out."""
        self.size += size
        if self.size > 4 * LONGEST_TEXT:
            raise TooLong
