"""Quantities as the API server writes them back, so that an intent equals the live object."""

from math import ceil

from kvtier.api.scalars import parse_quantity

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def memory_quantity(size: int) -> str:
    """Bytes in canonical form: ``1Gi`` for 1073741824, ``1G`` for 1000000000."""
    if size % 1024 == 0:
        return _scaled(size, base=1024, suffixes=_BINARY)
    return _scaled(size, base=1000, suffixes=_DECIMAL)


def cpu_quantity(text: str) -> str:
    """CPUs in canonical form, rounded up to a thousandth: ``500m`` for 0.5, ``2`` for 2000m."""
    milli = ceil(parse_quantity(text) * 1000)
    if milli % 1000:
        return f"{milli}m"
    return _scaled(milli // 1000, base=1000, suffixes=_DECIMAL)


def _scaled(value: int, *, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while value and value % base == 0 and power < len(suffixes) - 1:
        value //= base
        power += 1
    return f"{value}{suffixes[power]}"
