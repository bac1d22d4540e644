"""A shell script's words: quotes, expansions, redirections. One pass over the text.

shlex is not enough: it drops which words were quoted, and with that which ``$`` are expanded.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvtier.generation.pods.safe import LONGEST_TEXT, MOST_WORDS

if TYPE_CHECKING:
    from kvtier.generation.pods.shell import Shell

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
DECLARE: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
DEEPEST: Final = 4
OURS: Final = "comes from the tier's own Secret"
_PLAIN: Final = re.compile(r"[^ \t\n;&|\\'\"$`<>()#]+")
_DEFAULT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:?[-=+?])?")
STEP: Final = 64
"""Characters that a command or an unknown counts as."""
_MOST_ASSIGNMENTS: Final = 64
"""In front of one command."""


class TooLong(Exception):
    """More than is read of any script."""


@dataclass(slots=True)
class Reader:
    """A pass over one script."""

    shell: "Shell"
    script: str
    at: int = 0
    words: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    in_word: bool = False
    skip: bool = False
    """The next word is a redirection's file."""
    maybe: bool = False

    def run(self) -> None:
        script, end = self.script, len(self.script)
        while self.at < end:
            if plain := _PLAIN.match(script, self.at):
                self._add(plain[0])
                self.at = plain.end()
                continue
            self._special(script[self.at])
        self._end_command()

    def _special(self, char: str) -> None:
        following = self.script[self.at + 1 : self.at + 2]
        self.at += 1
        if char in " \t":
            self._end_word()
        elif char == "\\":
            self.at += 1
            if following != "\n":
                self._add(following)
        elif char == "'":
            end = self.script.find("'", self.at)
            end = len(self.script) if end < 0 else end
            self._add(self.script[self.at : end])
            self.at = end + 1
        elif char == '"':
            found = self._quoted()
            if found is not None:
                self._add("".join(found))
        elif char == "$":
            self._dollar()
        elif char == "`":
            self._add(self._backquoted())
        elif char == "#":
            if self.in_word:
                self._add("#")
            else:
                end = self.script.find("\n", self.at)
                self.at = len(self.script) if end < 0 else end
        elif char in "<>":
            self._redirect(char, following)
        else:
            self._operator(char, following)

    def _operator(self, char: str, following: str) -> None:
        was = self.maybe
        self._end_command()
        if char in "&|" and following == char:
            self.at += 1
            self.maybe = char == "|" or was
        if char == "(":
            self.shell.depth += 1
        elif char == ")":
            self.shell.depth = max(0, self.shell.depth - 1)

    def _redirect(self, char: str, following: str) -> None:
        if "".join(self.pieces).isdecimal() or "".join(self.pieces) == "&":
            self.pieces, self.in_word = [], False
        self._end_word()
        if char == "<" and following == "<":
            # A here-document's text is no commands.
            raise TooLong
        while self.script[self.at : self.at + 1] in ("<", ">", "&", "|"):
            self.at += 1
        self.skip = True

    def _add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.in_word = True

    def _end_word(self) -> None:
        if not self.in_word:
            return
        word = "".join(self.pieces)
        self.pieces, self.in_word = [], False
        if self.skip:
            self.skip = False
            return
        if len(self.words) >= MOST_WORDS:
            raise TooLong
        self.shell.grow(len(word))
        self.words.append(word)

    def _end_command(self) -> None:
        self._end_word()
        words, self.words = self.words, []
        self.skip = False
        if words:
            maybe, self.maybe = self.maybe, False
            self.shell.command(words, maybe=maybe)

    def _assigns(self) -> bool:
        """Whether the word being read is an assignment's: its expansions are not split."""
        if not self.pieces or not ASSIGNMENT.match(self.pieces[0]):
            return False
        if len(self.words) > _MOST_ASSIGNMENTS:
            return False
        before = all(ASSIGNMENT.match(word) for word in self.words)
        return before or self.words[0] in DECLARE

    def _dollar(self) -> None:
        """An expansion outside of quotes: its value is cut at spaces."""
        if self.script[self.at : self.at + 1] in ("'", '"'):
            return
        values = self._expansion()
        if len(values) == 1 and self._assigns():
            self._add(values[0])
            return
        for number, value in enumerate(values):
            if number:
                self._end_word()
            parts = value.split()
            if value[:1].isspace():
                self._end_word()
            for each, part in enumerate(parts):
                if each:
                    self._end_word()
                self._add(part)
            if parts and value[-1].isspace():
                self._end_word()

    def _quoted(self) -> list[str] | None:
        """Up to the closing double quote; ``"$@"`` ends a word for each parameter but the last.

        None for ``"$@"`` without parameters, which is no word at all.
        """
        found: list[str] = []
        nothing = False
        while self.at < len(self.script):
            char = self.script[self.at]
            self.at += 1
            if char == '"':
                break
            if char == "\\":
                following = self.script[self.at : self.at + 1]
                self.at += 1
                if following != "\n":
                    found.append(following if following in '$`"\\' else f"\\{following}")
            elif char == "$":
                values = self._expansion()
                for value in values[:-1]:
                    self._add("".join([*found, value]))
                    self._end_word()
                    found = []
                if values:
                    found.append(values[-1])
                nothing = nothing or not values
            elif char == "`":
                found.append(self._backquoted())
            else:
                end = self.at
                while end < len(self.script) and self.script[end] not in '"\\$`':
                    end += 1
                found.append(self.script[self.at - 1 : end])
                self.at = end
        return None if nothing and not found else found

    def _backquoted(self) -> str:
        end = self.script.find("`", self.at)
        end = len(self.script) if end < 0 else end
        inner = self.script[self.at : end]
        self.at = end + 1
        return self._output(inner)

    def _expansion(self) -> list[str]:
        """What stands behind a ``$``: one value, or one for each parameter."""
        script, at = self.script, self.at
        following = script[at : at + 1]
        if found := NAME.match(script, at):
            self.at = found.end()
            return [self._value(found[0])]
        if following in ("@", "*"):
            self.at += 1
            return self._parameters()
        if following.isdecimal():
            self.at += 1
            return [self._parameter(int(following))]
        if following == "{":
            end = self._closing("{", "}")
            return self._braces(script[at + 1 : end])
        if following == "(":
            end = self._closing("(", ")")
            return [self._output(script[at + 1 : end])]
        if following in ("?", "$", "!", "#", "-") and following:
            self.at += 1
            return [self._mark(f"${following}", "depends on how the script runs")]
        return ["$"]

    def _closing(self, opening: str, closing: str) -> int:
        """Where the bracket at ``at`` is closed; moves behind it."""
        depth = 0
        for place in range(self.at, len(self.script)):
            char = self.script[place]
            depth += (char == opening) - (char == closing)
            if not depth:
                self.at = place + 1
                return place
        self.at = len(self.script)
        return self.at

    def _braces(self, inner: str) -> list[str]:
        if inner in ("@", "*"):
            return self._parameters()
        if inner.isdecimal() and len(inner) < 4:
            return [self._parameter(int(inner))]
        found = _DEFAULT.match(inner)
        if not found or (found.end() != len(inner) and not found[2]):
            return [self._mark(f"${{{inner}}}", "depends on how the script runs")]
        name, operator, rest = found[1], found[2] or "", inner[found.end() :]
        variables = self.shell.variables
        if not operator or (variables.sets(name) and name not in variables.values):
            return [self._value(name)]
        value = variables.values.get(name)
        unset = value is None or (operator[0] == ":" and not value)
        if operator[-1] == "+":
            return [""] if unset else [self._inner(rest)]
        if operator[-1] == "?":
            return [self._value(name)]
        return [self._inner(rest) if unset else str(value)]

    def _inner(self, rest: str) -> str:
        if len(self.script) > LONGEST_TEXT or self.shell.nested > DEEPEST:
            raise TooLong
        self.shell.nested += 1
        inner = Reader(self.shell, rest.strip('"'))
        found = "".join(inner._quoted() or ())
        self.shell.nested -= 1
        return found

    def _value(self, name: str) -> str:
        value = self.shell.variables.get(name)
        self.shell.grow(len(value) + STEP)
        return value

    def _parameters(self) -> list[str]:
        if self.shell.positional is None:
            return [self._mark("$@", "depends on how the script runs")]
        self.shell.grow(sum(map(len, self.shell.positional)))
        return list(self.shell.positional)

    def _parameter(self, number: int) -> str:
        parameters = self.shell.positional
        if parameters is None or not number:
            return self._mark(f"${number}", "depends on how the script runs")
        return parameters[number - 1] if number <= len(parameters) else ""

    def _output(self, inner: str) -> str:
        """Of a command: known if it shows a ConfigMap's file."""
        words = inner.split()
        shown = f"$({inner})"
        if len(words) == 2 and words[0] in ("cat", "<"):
            if self.shell.is_ours(words[1]):
                return self._mark(shown, OURS)
            found, why = self.shell.read_file(words[1])
            if not why:
                self.shell.grow(len(found))
                return found.rstrip("\n").replace("\0", "")
            return self._mark(shown, why)
        return self._mark(shown, "depends on how the script runs")

    def _mark(self, shown: str, why: str) -> str:
        self.shell.grow(STEP)
        return self.shell.variables.marks.mark(shown, why)
