"""What the mounted engine Secret says: the only thing that an engine is told."""

import json
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvtier.loadtest.striping import Striping
from kvtier.redact import redact
from kvtier.store.address import RankAddress
from kvtier.store.tls import client_context
from kvtier.store.values import HEADER_BYTES

FILE = "connection.json"
CA_FILE = "ca.crt"


class BadSecret(ValueError):
    """A Secret that cannot be used. One line that names the key and the fix."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A tier as its engines know it.

    ``chunk_bytes`` is a whole chunk, all ranks together; ``kv_ranks`` are the objects that a rank
    keeps of a chunk it holds, by their part of the wire key. ``prefill_rates`` are (prompt length
    in tokens, tokens/s of one engine), sorted. ``capacity_tokens`` are what all ranks hold, None
    where the Secret does not say. ``ca_file`` is None without TLS. Seconds, bytes.
    """

    tier: str
    namespace: str
    generation: str
    striping: Striping
    model: str
    kv_ranks: tuple[str, ...]
    chunk_tokens: int
    chunk_bytes: int
    prefill_rates: tuple[tuple[float, float], ...]
    hit_latency: float
    hit_engine_time: float
    username: str = field(repr=False)
    password: str = field(repr=False)
    workers: int
    request_timeout: float
    ca_file: str | None
    ranks: tuple[RankAddress, ...]
    capacity_tokens: int | None = None

    @property
    def object_bytes(self) -> int:
        """Bytes of one object: what one key has on one rank."""
        parts = len(self.kv_ranks) * (len(self.ranks) if self.striping is Striping.SHARD else 1)
        return -(-self.chunk_bytes // parts)

    def striped(self, striping: Striping | None) -> "Connection":
        """The same tier with its chunks spread another way; None leaves it as it is."""
        return self if striping is None else replace(self, striping=striping)

    def tls_context(self) -> ssl.SSLContext | None:
        """What verifies a rank's certificate against the Secret's CA, None without TLS.

        Raises BadSecret for a CA that cannot be read.
        """
        if self.ca_file is None:
            return None
        try:
            return client_context(Path(self.ca_file).read_text("ascii"))
        except (OSError, ValueError) as error:
            raise BadSecret(
                f"{CA_FILE}: not usable ({error}); mount the whole engine Secret of the tier"
            ) from None


def load(directory: Path) -> Connection:
    """The Secret that is mounted at ``directory``. Raises BadSecret, OSError if it is not there."""
    try:
        document = json.loads((directory / FILE).read_text("utf-8"))
    except ValueError as error:
        raise BadSecret(f"{FILE}: not JSON ({error}); mount the tier's engine Secret") from None
    try:
        found = _parse(document, directory)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"is not usable ({error})"
        raise BadSecret(
            redact(
                f"{FILE}: {what}; it must be of this kvtier's release: let the operator write it"
            )
        ) from None
    if not found.ranks:
        raise BadSecret(f"{FILE}: ranks is empty; mount the tier's engine Secret")
    if found.object_bytes < HEADER_BYTES:
        raise BadSecret(
            f"{FILE}: chunkBytesPerRank makes objects of {found.object_bytes} bytes; the load test "
            f"needs {HEADER_BYTES} for its own header"
        )
    return found


def _parse(document: dict[str, Any], directory: Path) -> Connection:
    striping = Striping(document["striping"])
    ranks = tuple(map(RankAddress.parse, document["ranks"]))
    on_a_rank = int(document["chunkBytesPerRank"])
    return Connection(
        tier=str(document["tier"]),
        namespace=str(document["namespace"]),
        generation=str(document["generation"]),
        striping=striping,
        model=str(document["model"]),
        kv_ranks=tuple(map(str, document["kvRanks"])),
        chunk_tokens=int(document["chunkTokens"]),
        chunk_bytes=on_a_rank * (len(ranks) if striping is Striping.SHARD else 1),
        prefill_rates=tuple(
            sorted(
                (float(each["tokens"]), float(each["tokensPerSecond"]))
                for each in document["prefillRate"]
            )
        ),
        hit_latency=float(document.get("hitLatencySeconds") or 0),
        hit_engine_time=float(document.get("hitEngineTimeSeconds") or 0),
        username=str(document["username"]),
        password=str(document["password"]),
        workers=int(document["workers"]),
        request_timeout=float(document["requestTimeoutSeconds"]),
        ca_file=str(directory / CA_FILE) if document.get("tls") else None,
        ranks=ranks,
        capacity_tokens=int(capacity) if (capacity := document.get("capacityTokens")) else None,
    )
