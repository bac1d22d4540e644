"""From a container's command line to the engines that it starts."""

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtier.generation.pods.engines import Engine, by_module, by_program
from kvtier.generation.pods.environment import Files, Variables
from kvtier.generation.pods.lexer import DEEPEST, TooLong
from kvtier.generation.pods.safe import MOST_WORDS
from kvtier.generation.pods.shell import Shell

_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"})
_NO_LAUNCHERS: Final = frozenset(
    {
        "echo",
        "printf",
        "grep",
        "pgrep",
        "pkill",
        "test",
        "[",
        "[[",
        "which",
        "command",
        "pip",
        "cat",
    }
)
"""Programs whose words are no commands."""
_WRAPPED_WITHIN: Final = 64
"""Words in front of an engine's command: ``numactl``, ``env``, ``nsys profile`` and their like."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One engine's command. ``words`` follow its name."""

    engine: Engine
    words: Sequence[str]
    variables: Variables
    positional: bool


@dataclass(slots=True)
class Found:
    """What a container runs. ``problems``: why something of it cannot be told."""

    launches: list[Launch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finder:
    """Looks for engines in command lines of one container."""

    files: Files
    is_ours: Callable[[str], bool]
    found: Found

    def look(self, words: list[str], *, variables: Variables, nested: int = 0) -> None:
        """Add what ``words`` start."""
        if nested > DEEPEST:
            self.found.problems.append("commands are nested too deep")
            return
        while words and "=" in words[0] and not words[0].startswith(("-", "/", "\0")):
            name, _, value = words[0].partition("=")
            if not name.isidentifier():
                break
            variables = Variables(variables.marks, variables.values | {name: value})
            words = words[1:]
        if not words:
            return
        program = posixpath.basename(words[0])
        if program in _NO_LAUNCHERS:
            return
        if launch := engine_in(words, variables):
            self.found.launches.append(launch)
            return
        for at, word in enumerate(words[:_WRAPPED_WITHIN]):
            name = posixpath.basename(word)
            if name in _SHELLS or name.endswith(".sh"):
                self._shell(words[at:], variables=variables, nested=nested + 1)
                return
        if "\0" in words[0] or (unknown := variables.marks.first(" ".join(words[:2]))):
            unknown = variables.marks.first(" ".join(words[:2]))
            self.found.problems.append(f"a command has {unknown}")

    def _shell(self, words: list[str], *, variables: Variables, nested: int) -> None:
        at, is_script = 1, posixpath.basename(words[0]).endswith(".sh")
        inline = False
        if posixpath.basename(words[0]) == "busybox":
            at += 1
        while not is_script and at < len(words) and words[at][:1] in ("-", "+"):
            option = words[at]
            at += 1
            inline = inline or ("c" in option and not option.startswith("--"))
            if option == "--":
                break
            if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
                at += 1
        at -= is_script
        if at >= len(words):
            return
        script, why = (words[at], "") if inline else self.files.read(words[at])
        if not inline and words[at].startswith("\0"):
            why = "is unknown"
        if why:
            self.found.problems.append(f"the script {posixpath.basename(words[at])} {why}")
            return
        # `sh -c script name parameters`, `sh script parameters`
        positional = words[at + 2 :] if inline else words[at + 1 :]
        self._run(script, positional, variables=variables, nested=nested)

    def _run(
        self, script: str, positional: list[str], *, variables: Variables, nested: int
    ) -> None:
        own = Variables(variables.marks, dict(variables.values), variables.others)
        shell = Shell(own, self.files.read, self.is_ours, positional[:MOST_WORDS])
        try:
            shell.run(script)
        except TooLong:
            self.found.problems.append("the script is too long or has a here-document")
        for command in shell.commands:
            self.look(command, variables=own, nested=nested)


def engine_in(words: Sequence[str], variables: Variables) -> Launch | None:
    """The engine that a command without a shell starts, behind any wrapper."""
    programs, modules = by_program(), by_module()
    for at, word in enumerate(words[:_WRAPPED_WITHIN]):
        if word == "-m" and at + 1 < len(words) and words[at + 1] in modules:
            engine = modules[words[at + 1]]
            return Launch(engine, words[at + 2 :], variables, positional=False)
        name = posixpath.basename(word)
        for first, engine in programs.get(name, ()):
            if tuple(words[at + 1 : at + len(first)]) == first[1:]:
                rest = words[at + len(first) :]
                return Launch(engine, rest, variables, positional=engine.positional)
        if name.endswith(".py") and "/" in word:
            module = word.removesuffix(".py").replace("/", ".")
            for known, engine in modules.items():
                if module.endswith(f".{known}"):
                    return Launch(engine, words[at + 1 :], variables, positional=False)
    return None
