"""Where a rank is, as Secrets tell engines and probes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RankAddress:
    """A rank's address, and the prefix of the keys that whoever reads this may have there."""

    rank: int
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """From an entry of ``ranks``. Raises KeyError, ValueError or TypeError for another form."""
        return cls(
            rank=int(found["rank"]),
            host=str(found["host"]),
            port=int(found["port"]),
            prefix=str(found["prefix"]),
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
