"""The type of the fixture ``make_spec``."""

from collections.abc import Callable

from kvtier.api.types import KVCacheTierSpec

MakeSpec = Callable[..., KVCacheTierSpec]
