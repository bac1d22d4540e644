"""Figures as people read them: Gb/s, milliseconds, binary sizes, digits in groups."""

from typing import Final

_SIZES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def digits(figure: float) -> str:
    """Three significant digits without an exponent: 13.1, 0.216, 1,640."""
    if abs(figure) >= 100:
        return f"{figure:,.0f}"
    if abs(figure) >= 0.001 or figure == 0:
        return f"{figure:.3g}"
    return f"{figure:.7f}".rstrip("0") if abs(figure) >= 1e-7 else f"{figure:.1e}"


def counted(count: int, thing: str) -> str:
    """``1 chunk``, ``2 chunks``, ``4,851 chunks``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def gigabits(bytes_per_second: float) -> str:
    return f"{digits(bytes_per_second * 8 / 1e9)} Gb/s"


def gigabytes(bytes_per_second: float) -> str:
    return f"{digits(bytes_per_second / 1e9)} GB/s"


def age(duration: float) -> str:
    """How long ago, in the largest whole unit: 40 s, 4 min, 6 h, 3 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration >= length:
            return f"{int(duration // length)} {unit}"
    return f"{int(max(duration, 0))} s"


def seconds(duration: float) -> str:
    """Seconds from one second on, milliseconds below."""
    return f"{digits(duration)} s" if abs(duration) >= 1 else f"{digits(duration * 1000)} ms"


def size(count: float) -> str:
    for unit, factor in _SIZES:
        if count >= factor:
            return f"{digits(count / factor)} {unit}"
    return f"{digits(count)} B"
