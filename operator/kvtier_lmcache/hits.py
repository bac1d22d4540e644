"""How much of a look-up is a hit, and whether it is long enough to be worth a fetch: pure."""

from collections.abc import Hashable, Sequence


def hit_is_short(
    rows: Sequence[Hashable], groups: Sequence[Hashable], found: Sequence[bool], *, least: int
) -> bool:
    """Whether no hit of ``least`` chunks can come of these objects.

    LMCache asks row by row: all chunks of one object group on one KV rank, then of the next.
    ``rows`` and ``groups`` name each object's row and object group. With one group a hit is the
    leading run of chunks that every row has. With several, of which some need only the last chunks
    of a window, it ends at a chunk that every row has, whatever is missing before it: that one is
    an upper bound, so no hit of a hybrid is ever held back that might have been long enough.

    Where the objects are no such rows, nothing is held back.
    """
    if least <= 0 or not rows:
        return False
    chunks = next((at for at, row in enumerate(rows) if row != rows[0]), len(rows))
    starts = range(0, len(rows), chunks)
    regular = all(row == rows[at - at % chunks] for at, row in enumerate(rows))
    if not regular or len(set(rows)) * chunks != len(rows):
        return False
    whole = [all(found[start + chunk] for start in starts) for chunk in range(chunks)]
    if len(set(groups)) == 1:
        hit = next((chunk for chunk, there in enumerate(whole) if not there), chunks)
    else:
        hit = next((chunk + 1 for chunk in reversed(range(chunks)) if whole[chunk]), 0)
    return hit < least
