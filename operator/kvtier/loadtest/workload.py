"""The requests of one engine: when they come and what their prompts are."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvtier.loadtest.keys import TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Workload:
    """``rate`` is in requests/s of one engine. A prompt has ``prompt_tokens`` tokens, of which the
    first ``prefix_tokens`` are one of ``prefixes`` shared beginnings, each as likely as any."""

    rate: float
    prompt_tokens: int
    prefixes: int
    prefix_tokens: int
    seed: int


def arrivals(workload: Workload, *, engine: int) -> Iterator[tuple[float, int]]:
    """Seconds after the start at which a request comes, and the number of its prefix, for ever.

    Open loop: requests come by a Poisson process, whether those before them are done or not. The
    same seed and engine have the same requests.
    """
    chance = random.Random(f"{workload.seed}/{engine}")
    at = 0.0
    while True:
        at += chance.expovariate(workload.rate)
        yield at, chance.randrange(workload.prefixes)


def prompt(workload: Workload, *, prefix: int, unique: str) -> bytes:
    """Token ids of a prompt: the shared beginning follows from the seed, the rest from ``unique``.

    All engines and runs of one seed share their beginnings.
    """
    beginning = random.Random(f"{workload.seed}/prefix/{prefix}")
    rest = random.Random(unique)
    return beginning.randbytes(workload.prefix_tokens * TOKEN_BYTES) + rest.randbytes(
        (workload.prompt_tokens - workload.prefix_tokens) * TOKEN_BYTES
    )
