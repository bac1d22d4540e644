"""What the plugin is given, checked: addresses, prefixes, timeouts, the credentials' file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HASH, SHARD = "Hash", "Shard"
SEPARATOR = "@"
"""Stands between the parts of a key, the prefix included."""
MOST_WORKERS = 256


@dataclass(frozen=True, slots=True)
class RankAddress:
    """Where a rank's Valkey is, and what each key there begins with."""

    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(...)"


@dataclass(frozen=True, slots=True)
class Config:
    """Timeouts are in seconds. ``workers`` is the number of connections to each rank."""

    striping: str
    ranks: tuple[RankAddress, ...]
    credentials: Path
    workers: int
    request_timeout: float
    connection_timeout: float
    ca: Path | None
    tls: bool
    minimum_hit_chunks: int

    def read_credentials(self) -> Credentials:
        """As the file has them now: a token alone, or a user and a password on two lines.

        Raises OSError, and ValueError without anything of the file in it.
        """
        lines = self.credentials.read_text(encoding="utf-8").split()
        if len(lines) not in (1, 2):
            raise ValueError(f"credentials: {self.credentials} must have a token, or two lines")
        return Credentials(user=lines[0], password=lines[-1])


_FIELDS = {
    "striping",
    "ranks",
    "credentials",
    "workers",
    "request_timeout",
    "connection_timeout",
    "tls",
    "ca",
    "minimum_hit_chunks",
}


def parse(given: object) -> Config:
    """Raises ValueError: one line that names the field and the fix."""
    if not isinstance(given, Mapping):
        raise ValueError("the plugin's parameters: must be an object; use the tier's Secret")
    unknown = sorted(str(name) for name in given.keys() - _FIELDS)
    if unknown:
        raise ValueError(f"{unknown[0]}: no such field; known are {', '.join(sorted(_FIELDS))}")
    striping = given.get("striping")
    if striping not in (HASH, SHARD):
        raise ValueError(f"striping: must be {HASH} or {SHARD}")
    tls = given.get("tls", False)
    if not isinstance(tls, bool):
        raise ValueError("tls: must be true or false")
    return Config(
        striping=striping,
        ranks=_ranks(given.get("ranks")),
        credentials=Path(_text(given, "credentials")),
        workers=_whole(given, "workers", default=8, least=1, most=MOST_WORKERS),
        request_timeout=_seconds(given, "request_timeout", default=0.25),
        connection_timeout=_seconds(given, "connection_timeout", default=1.0),
        ca=Path(_text(given, "ca")) if tls and "ca" in given else None,
        tls=tls,
        minimum_hit_chunks=_whole(given, "minimum_hit_chunks", default=0, least=0, most=1 << 31),
    )


def _ranks(given: object) -> tuple[RankAddress, ...]:
    if not isinstance(given, list) or not given:
        raise ValueError("ranks: must be a list with an object for each rank")
    found = []
    for number, each in enumerate(given):
        where = f"ranks[{number}]"
        if not isinstance(each, Mapping) or each.keys() != {"host", "port", "prefix"}:
            raise ValueError(f"{where}: must be an object of host, port and prefix")
        prefix = _text(each, "prefix", where=f"{where}.")
        if SEPARATOR in prefix:
            raise ValueError(f"{where}.prefix: must not contain {SEPARATOR!r}")
        found.append(
            RankAddress(
                host=_text(each, "host", where=f"{where}."),
                port=_whole(each, "port", least=1, most=65535, where=f"{where}."),
                prefix=prefix,
            )
        )
    if len({(each.host, each.port, each.prefix) for each in found}) != len(found):
        raise ValueError("ranks: two are the same; give each rank its own address and prefix")
    return tuple(found)


def _text(given: Mapping[str, Any], name: str, *, where: str = "") -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}{name}: must be a text that is not empty")
    return value


def _whole(
    given: Mapping[str, Any],
    name: str,
    *,
    least: int,
    most: int,
    default: int | None = None,
    where: str = "",
) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{where}{name}: must be a whole number from {least} to {most}")
    return value


def _seconds(given: Mapping[str, Any], name: str, *, default: float) -> float:
    value = given.get(name, default)
    # GLIDE counts in whole milliseconds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 600:
        raise ValueError(f"{name}: must be seconds from 0.001 to 600")
    return float(value)
