"""The table of engines (``engines.yaml``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

FIELDS: Final = frozenset(
    {"modelName", "revision", "tokenizerRevision", "kvCacheDtype", "chunkTokens", "connector"}
    | {f"parallelism.{name}" for name in ("tensor", "pipeline", "decodeContext", "prefillContext")}
)
"""What of an identity a pod can tell."""
SWITCHES: Final = (
    "--enable-",
    "--disable-",
    "--no-",
    "--use-",
    "--is-",
    "--skip-",
    "--trust-remote-code",
    "--enforce-eager",
    "--headless",
    "--async-scheduling",
)
"""Beginnings of flags that take no value."""


class Role(StrEnum):
    """What a command is to a tier."""

    ENGINE = "engine"
    CACHE = "cache"
    """An LMCache server."""
    WORKER = "worker"
    """Of an engine that another pod starts."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One thing that flags say. ``default``: what holds without them; None if it is unknown."""

    meaning: str
    kind: str
    default: int | None


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of command."""

    name: str
    role: Role
    programs: tuple[tuple[str, ...], ...]
    modules: frozenset[str]
    images: frozenset[str]
    positional: bool
    config: str
    flags: Mapping[str, Flag]
    """By name, dashes for underscores."""
    meanings: tuple[Flag, ...]
    many: frozenset[str]
    switches: frozenset[str]
    values: frozenset[str]
    environment: Mapping[str, str]

    def is_switch(self, name: str) -> bool:
        """Whether an unlisted flag certainly takes no value."""
        return name in self.switches or (name.startswith(SWITCHES) and name not in self.values)


@cache
def engines() -> tuple[Engine, ...]:
    """The table."""
    text = resources.files(__package__).joinpath("engines.yaml").read_text("utf-8")
    return tuple(_engine(name, entry) for name, entry in yaml.safe_load(text).items())


def _engine(name: str, entry: Mapping[str, Any]) -> Engine:
    meanings = {
        meaning: Flag(meaning, flag["kind"], flag.get("default"))
        for meaning, flag in entry["flags"].items()
    }
    return Engine(
        name=name,
        role=Role(entry.get("role", "engine")),
        programs=tuple(tuple(words) for words in entry["programs"]),
        modules=frozenset(entry["modules"]),
        images=frozenset(entry.get("images", ())),
        positional=entry.get("positional", False),
        config=entry.get("config", ""),
        flags={
            spelling: meanings[meaning]
            for meaning, flag in entry["flags"].items()
            for spelling in flag["names"]
        },
        meanings=tuple(meanings.values()),
        many=frozenset(entry.get("many", ())),
        switches=frozenset(entry.get("switches", ())),
        values=frozenset(entry.get("values", ())),
        environment=entry.get("environment", {}),
    )


@cache
def by_module() -> Mapping[str, Engine]:
    return {module: engine for engine in engines() for module in engine.modules}


@cache
def by_program() -> Mapping[str, tuple[tuple[tuple[str, ...], Engine], ...]]:
    """Program -> (its words, engine)."""
    found: dict[str, tuple[tuple[tuple[str, ...], Engine], ...]] = {}
    for engine in engines():
        for words in engine.programs:
            found[words[0]] = (*found.get(words[0], ()), (words, engine))
    return found


@cache
def by_image() -> Mapping[str, Engine]:
    return {image: engine for engine in engines() for image in engine.images}
