"""An engine's arguments in all their spellings, as argparse and vLLM's own parser take them.

``--flag value``, ``--flag=value``, underscores for dashes, ``-tp 2``, ``-qfp8``, ``--no-flag``,
``--json.key value``, values of a YAML file behind ``--config`` (which the command line
outranks). The last of several counts. An unlisted flag may take the word behind it as its value.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import yaml

from kvtier.generation.pods.canonical import NotCanonical, decoded
from kvtier.generation.pods.command import Launch
from kvtier.generation.pods.engines import Flag
from kvtier.generation.pods.environment import Files
from kvtier.generation.pods.safe import LONGEST_TEXT, MOST_WORDS, Marks, Unknown, short

_SHORTEST_ABBREVIATION: Final = 4


@dataclass(slots=True)
class Arguments:
    """What was said, by meaning; values may have marks.

    ``doubts``: meanings that cannot be told, and why. ``open``: why there may be other arguments;
    '' if all are known, so that what is not said has its default.
    """

    said: dict[str, list[str]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    """The flag that said it, as it was written."""
    doubts: dict[str, str] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    doubtful_positional: list[str] = field(default_factory=list)
    open: str = ""
    nested: dict[str, dict[str, Any]] = field(default_factory=dict)

    def say(self, flag: Flag, values: list[str], *, shown: str) -> None:
        self.said[flag.meaning] = values
        self.shown[flag.meaning] = shown
        self.doubts.pop(flag.meaning, None)

    def doubt(self, meaning: str, why: str) -> None:
        self.said.pop(meaning, None)
        self.doubts[meaning] = why

    def opened(self, unknown: Unknown) -> None:
        """Words that nobody knows stand here: they may say anything again."""
        self.open = f"the arguments have {unknown}"
        if not unknown.unset:
            for meaning in list(self.said):
                self.doubt(meaning, f"{self.open}, and may say it again")


def arguments_of(launch: Launch, *, files: Files, marks: Marks) -> Arguments:
    """All arguments of one command."""
    found = Arguments()
    words = list(launch.words[:MOST_WORDS])
    if len(launch.words) > MOST_WORDS or sum(map(len, words)) > 4 * LONGEST_TEXT:
        found.open = "there are too many arguments to read"
        return found
    words = _with_config(words, launch, found, files=files, marks=marks)
    _Parser(launch, found, marks).parse(words)
    return found


def _with_config(
    words: list[str], launch: Launch, found: Arguments, *, files: Files, marks: Marks
) -> list[str]:
    """The words with those of the file behind ``--config`` in front of them."""
    option = launch.engine.config
    if not option:
        return words
    if option not in words:
        if any(word.startswith(f"{option}=") for word in words):
            found.open = f"{option}=FILE is read by some releases only; write {option} FILE"
        return words
    at = words.index(option)
    path = words[at + 1] if at + 1 < len(words) else ""
    rest = [*words[:at], *words[at + 2 :]]
    if unknown := marks.first(path):
        found.open = f"{option} is {unknown}"
        return rest
    text, why = files.read(path)
    in_file: tuple[str, ...] | str = why or words_of_file(text)
    if isinstance(in_file, str):
        found.open = f"{option} {short(path)} {in_file}"
        return rest
    # Behind the model, which alone may stand in front of flags.
    first = 1 if launch.positional and rest and not rest[0].startswith("-") else 0
    return [*rest[:first], *in_file, *rest[first:]]


class _Plain(yaml.SafeLoader):
    """YAML without aliases, which a few lines can make endless."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError
        return super().compose_node(parent, index)


@lru_cache(maxsize=256)
def words_of_file(text: str) -> tuple[str, ...] | str:
    """The arguments that a YAML file says, or why it says none. Pods of a fleet share files."""
    try:
        document = yaml.load(text, _Plain)
        return tuple(_flattened(document))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return "is no YAML of flags and values"


def _flattened(document: object) -> Iterator[str]:
    if not isinstance(document, dict):
        raise TypeError
    for key, value in document.items():
        flag = f"--{key}"
        if value is True:
            yield flag
        elif value is False:
            yield f"--no-{key}"
        elif isinstance(value, list):
            if value:
                yield flag
                yield from (
                    json.dumps(each) if isinstance(each, dict) else str(each) for each in value
                )
        elif isinstance(value, dict):
            yield from (flag, json.dumps(value, allow_nan=False))
        elif value is not None:
            yield f"{flag}={value}"


@dataclass(slots=True)
class _Parser:
    launch: Launch
    found: Arguments
    marks: Marks
    words: Sequence[str] = ()
    at: int = 0

    def parse(self, words: Sequence[str]) -> None:
        self.words = words
        free = True
        """Whether a plain word cannot be an unlisted flag's value."""
        while self.at < len(words):
            word = words[self.at]
            self.at += 1
            unknown = self.marks.first(word) if word.startswith("\0") else None
            if unknown and free and not (self.launch.positional and self.at == 1):
                self.found.opened(unknown)
            elif word == "--":
                self.found.positional += words[self.at :]
                break
            elif not word.startswith("-") or word == "-":
                kept = self.found.positional if free else self.found.doubtful_positional
                kept.append(word)
                free = True
            else:
                free = self._flag(word)
        for meaning, value in self.found.nested.items():
            self.found.said[meaning] = [json.dumps(value)]

    def _flag(self, word: str) -> bool:
        """One flag; whether the word behind it is certainly not its value."""
        name, equals, value = word.partition("=")
        if "\0" in name:
            if unknown := self.marks.first(name):
                self.found.opened(unknown)
            return True
        flags, long = self.launch.engine.flags, name.startswith("--")
        if long:
            head, dot, tail = name.partition(".")
            name = f"--{head[2:].replace('_', '-')}"
            if dot:
                return self._nested(name, tail, value if equals else None)
        flag = flags.get(name)
        if flag is None and not long and word[:2] in flags and len(word) > 2:
            flag, equals, value = flags[word[:2]], "=", word[2:].removeprefix("=")
        if flag is not None:
            self._listed(flag, name, value if equals else None)
            return True
        if name.startswith("--no-") and (other := flags.get(f"--{name[5:]}")):
            self.found.say(other, ["false"], shown=name)
            return True
        if name in self.launch.engine.many:
            self._many([])
            return True
        self._abbreviated(name)
        return bool(equals) or self.launch.engine.is_switch(name)

    def _listed(self, flag: Flag, name: str, value: str | None) -> None:
        if flag.kind == "switch":
            self.found.say(flag, [value or "true"], shown=name)
        elif flag.kind in ("list", "adapters"):
            values = self._many([] if value is None else [value])
            self.found.say(flag, values, shown=name)
        elif value is not None:
            self.found.say(flag, [value], shown=name)
        elif self.at < len(self.words) and not _is_flag(self.words[self.at]):
            self.found.say(flag, [self.words[self.at]], shown=name)
            self.at += 1
        else:
            self.found.doubt(flag.meaning, f"{name} has no value")

    def _many(self, values: list[str]) -> list[str]:
        while self.at < len(self.words) and not _is_flag(self.words[self.at]):
            values.append(self.words[self.at])
            self.at += 1
        return values

    def _nested(self, name: str, path: str, value: str | None) -> bool:
        """``--json.key value``: vLLM puts all of them behind what ``--json`` says."""
        flag = self.launch.engine.flags.get(name)
        if value is None:
            value = self.words[self.at] if self.at < len(self.words) else ""
            self.at += 1
        if flag is None:
            return True
        if unknown := self.marks.first(f"{path}{value}"):
            self.found.doubt(flag.meaning, f"{name}.{short(path)} has {unknown}")
            return True
        keys = path.removesuffix("+").split(".")[:16]
        content: Any = value
        if path.endswith("+"):
            content = value.split(",")
        else:
            try:
                content = decoded(value)
            except NotCanonical:
                content = value
        target = self.found.nested.setdefault(flag.meaning, {})
        self.found.shown[flag.meaning] = name
        for key in keys[:-1]:
            inner = target.get(key)
            if not isinstance(inner, dict):
                inner = target[key] = {}
            target = inner
        before = target.get(keys[-1])
        if isinstance(before, list) and isinstance(content, list):
            content = [*before, *content]
        target[keys[-1]] = content
        return True

    def _abbreviated(self, name: str) -> None:
        """argparse takes a flag's unambiguous beginning; which those are changes by release."""
        if len(name) < _SHORTEST_ABBREVIATION:
            return
        for full, flag in self.launch.engine.flags.items():
            if full.startswith(name):
                self.found.doubt(flag.meaning, f"{name} may stand for {full}; write it out")


def _is_flag(word: str) -> bool:
    """As argparse tells: negative numbers and words with spaces are values."""
    if not word.startswith("-") or word == "-" or " " in word:
        return False
    return not word[1:].replace(".", "", 1).isdecimal()
