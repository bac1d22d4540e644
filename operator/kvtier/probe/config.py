"""What a probe is told: the ranks, its user and token, and what it may take.

Every rank's process imports this, so it imports nothing large.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from kvtier.store.address import RankAddress
from kvtier.store.values import HEADER_BYTES

CONFIG_FILE: Final = "probe.json"
MOST_RANKS: Final = 64
LEAST_VALUES: Final = 2
MOST_VALUES: Final = 8
"""Values that a rank is given to hold, where a thousandth of its memory is enough for them."""
MEMORY_SHARE: Final = 0.001
ONCE: Final = 3
"""How often each value crosses the link at least: stored, read and compared, read and timed."""
MOST_CONNECTIONS: Final = 8
MOST_AHEAD: Final = 8
MOST_SECONDS: Final = 60.0
MOST_BYTES: Final = 1 << 40
MOST_VALUE_BYTES: Final = 512 << 20
"""Valkey's ``proto-max-bulk-len``: no larger value can be stored."""


class BadConfig(ValueError):
    """A configuration that cannot be used. One line that names the field and the fix."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """One probe. Bytes and seconds.

    ``value_bytes`` is one chunk as a rank holds it. ``max_bytes`` bounds all values that cross the
    network, both ways and of all ranks; ``setup_seconds`` everything before the timed reading, and
    ``seconds`` that; ``connections`` those of one rank, each of which has asked for up to ``ahead``
    values that it has not got yet. ``ca`` (PEM) verifies the ranks, None without TLS. ``node`` is
    where this runs.

    Raises BadConfig.
    """

    ranks: tuple[RankAddress, ...]
    value_bytes: int
    max_bytes: int
    seconds: float
    username: str
    password: str = field(repr=False)
    connections: int = 2
    ahead: int = 2
    setup_seconds: float = 10.0
    ca: str | None = field(default=None, repr=False)
    node: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.ranks) <= MOST_RANKS:
            raise BadConfig(f"ranks: {len(self.ranks)} of them; give 1 to {MOST_RANKS}")
        if len({each.rank for each in self.ranks}) != len(self.ranks):
            raise BadConfig("ranks: two have one number; give each its own")
        if not HEADER_BYTES < self.value_bytes <= MOST_VALUE_BYTES:
            raise BadConfig(
                f"valueBytes: {self.value_bytes} is not from {HEADER_BYTES + 1} to "
                f"{MOST_VALUE_BYTES}; give the bytes of one chunk on a rank"
            )
        if not 1 <= self.connections <= MOST_CONNECTIONS:
            raise BadConfig(
                f"connections: {self.connections} is not from 1 to {MOST_CONNECTIONS} per rank"
            )
        if not 1 <= self.ahead <= MOST_AHEAD:
            raise BadConfig(f"ahead: {self.ahead} is not from 1 to {MOST_AHEAD} per connection")
        # Written so that nan is refused too.
        if not 0.05 <= self.seconds <= MOST_SECONDS:
            raise BadConfig(f"seconds: {self.seconds:g} is not from 0.05 to {MOST_SECONDS:g}")
        if not self.least_bytes <= self.max_bytes <= MOST_BYTES:
            raise BadConfig(
                f"maxBytes: {self.max_bytes} is not from {self.least_bytes} to {MOST_BYTES}; "
                f"{LEAST_VALUES} values of {self.value_bytes} bytes on {len(self.ranks)} ranks "
                f"cross the network {ONCE} times"
            )
        if not self.password:
            raise BadConfig("token: empty; mount the tier's probe Secret")

    @property
    def least_bytes(self) -> int:
        return ONCE * LEAST_VALUES * self.value_bytes * len(self.ranks)

    @property
    def rank_bytes(self) -> int:
        """What one rank's values may come to."""
        return self.max_bytes // len(self.ranks)


def values_to_store(config: ProbeConfig, *, used_memory: int, maxmemory: int) -> int:
    """How many values a rank is to hold for the probe.

    A thousandth of its memory, so that they are not all in a processor's cache, but at least two,
    at most eight, and so few that half of the bytes are left to be timed. Only two in a rank that
    has no room for more: it then evicts so much, as it does for any chunk that is stored. A cache
    that is used is always full, and would never be probed otherwise.
    """
    wanted = int(maxmemory * MEMORY_SHARE) // config.value_bytes
    affordable = config.rank_bytes // (2 * (ONCE - 1) * config.value_bytes)
    count = max(LEAST_VALUES, min(wanted, affordable, MOST_VALUES))
    room = maxmemory == 0 or used_memory + count * config.value_bytes <= maxmemory
    return count if room else LEAST_VALUES


def document(config: ProbeConfig) -> dict[str, Any]:
    """What ``parse`` reads, without the secrets."""
    return {
        "ahead": config.ahead,
        "connections": config.connections,
        "maxBytes": config.max_bytes,
        "ranks": [
            {"rank": each.rank, "host": each.host, "port": each.port, "prefix": each.prefix}
            for each in config.ranks
        ],
        "seconds": config.seconds,
        "tls": config.ca is not None,
        "username": config.username,
        "valueBytes": config.value_bytes,
    }


def parse(text: str, *, token: str, ca: str | None, node: str = "") -> ProbeConfig:
    """A configuration from the text of its file. Raises BadConfig."""
    try:
        found = json.loads(text)
        ranks = tuple(map(RankAddress.parse, found["ranks"]))
        tls = bool(found.get("tls"))
        fields: dict[str, Any] = {
            "value_bytes": int(found["valueBytes"]),
            "max_bytes": int(found["maxBytes"]),
            "seconds": float(found["seconds"]),
            "connections": int(found["connections"]),
            "ahead": int(found["ahead"]),
            "username": str(found["username"]),
        }
    except KeyError as error:
        raise BadConfig(f"{CONFIG_FILE}: has no {error}; let the operator write it") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadConfig(f"{CONFIG_FILE}: not usable ({error}); let the operator write it") from None
    if tls and not ca:
        raise BadConfig("ca.crt: missing, and the ranks speak TLS; mount the whole Secret")
    return ProbeConfig(
        ranks=ranks, password=token.strip(), ca=ca if tls else None, node=node, **fields
    )
