"""Types of flags that take a figure: each refuses what it cannot use, with the bounds."""

import argparse
from collections.abc import Callable

from kvtier.api.scalars import parse_duration


def count(least: int, most: int) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= 20
        if not digits or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return int(text)

    return parse


def figure(least: float, most: float) -> Callable[[str], float]:
    """A number from ``least`` to ``most``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return parse


def duration(least: float, most: float) -> Callable[[str], float]:
    """A duration such as 90s or 5m, from ``least`` to ``most`` seconds."""

    def parse(text: str) -> float:
        try:
            value = parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not from {least:g}s to {most:g}s; write such a duration: 90s"
            )
        return value

    return parse
