"""How long a change takes until no rank of a tier gives a token a key any more."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import valkey

from livecluster.tier import Tier

POLL_SECONDS = 0.01
EIGHT_RANKS = {
    "model": {"layout": {"gqa": {"layers": 2, "kvHeads": 8, "headDim": 16}}},
    "pool": {"ranks": 8},
    "store": {"cpu": "50m"},
}
"""Merged into the small tier: a head for each rank."""


def seconds_to_gone(
    tier: Tier, generation: str, token: str, change: Callable[[], None], *, most: float
) -> float:
    """Make ``change`` and ask every rank, as its operator, until all refuse the token its keys.

    In seconds after ``change`` returned; what it takes itself is the caller's to know.
    """
    engine = tier.engine()
    operator = tier.secret(f"{tier.name}-operator")["token"]
    with ExitStack() as stack:
        open_ranks = {
            rank: stack.enter_context(engine.connect(rank, username="operator", password=operator))
            for rank in engine.ranks
        }
        assert all(_reads(session, token, generation, rank) for rank, session in open_ranks.items())
        change()
        begun = time.monotonic()
        while open_ranks:
            for rank, session in list(open_ranks.items()):
                if not _reads(session, token, generation, rank):
                    del open_ranks[rank]
            waited = time.monotonic() - begun
            assert waited < most, f"ranks {sorted(open_ranks)} still give keys after {waited:.1f} s"
            time.sleep(POLL_SECONDS)
        return waited


def _reads(session: valkey.Valkey, token: str, generation: str, rank: int) -> bool:
    try:
        key = f"kvt-{generation}-r{rank}@x"
        return session.execute_command("ACL", "DRYRUN", token, "get", key) in (b"OK", "OK")
    except valkey.ResponseError:
        return False
