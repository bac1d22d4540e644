"""What a rank is asked: look keys up, load one chunk into a buffer, store one from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvtier_lmcache.client import Client

MOST_KEYS = 64
"""Keys of one look-up command."""
FEWEST_KEYS = 8
"""So many go together even where workers are idle: a round trip costs more than they do."""


class Kind(StrEnum):
    LOOKUP = "lookup"
    LOAD = "load"
    STORE = "store"


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """``done`` is called once, with an answer for each key, from any thread.

    A load or a store has one key, and its buffer belongs to the job until ``done``: whoever gave it
    must neither free nor reuse it before.
    """

    kind: Kind
    keys: Sequence[bytes]
    done: Callable[[Sequence[bool]], None]
    buffer: memoryview | None = None

    @property
    def moved_bytes(self) -> int:
        return 0 if self.buffer is None else self.buffer.nbytes


def run(job: Job, client: Client) -> Sequence[bool]:
    """Blocks for at most the client's request timeout a command. Raises what GLIDE does."""
    if job.kind is Kind.LOOKUP:
        return present(list(job.keys), client)
    (key,), buffer = job.keys, job.buffer
    assert buffer is not None
    if job.kind is Kind.STORE:
        client.set(key, buffer)
        return [True]
    written = client.get(key, buffer=buffer)
    # A value of another length is no chunk of this model: a miss.
    return [written is not None and int(written) == buffer.nbytes]


def present(keys: list[bytes], client: Client) -> list[bool]:
    """Which of them are there. EXISTS counts: a prompt's chunks mostly are or are not there
    together, so one command answers for all of them, and halves are asked where it does not."""
    found = client.exists(keys)
    if found in (0, len(keys)):
        return [found > 0] * len(keys)
    middle = len(keys) // 2
    return present(keys[:middle], client) + present(keys[middle:], client)


def slices(count: int, *, workers: int) -> list[range]:
    """How ``count`` keys of one rank are looked up: in as many commands as it has workers, where
    each then has keys enough."""
    size = min(MOST_KEYS, max(FEWEST_KEYS, -(-count // workers)))
    return [range(first, min(count, first + size)) for first in range(0, count, size)]
