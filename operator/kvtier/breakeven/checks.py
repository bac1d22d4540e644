"""Refusal of figures that no formula can use."""

import math


def positive(**figures: float) -> None:
    """Raise ValueError naming the first figure that is not a finite number above zero."""
    for name, value in figures.items():
        if not (_is_finite(value) and value > 0):
            raise ValueError(f"{name} must be a finite number above zero, not {value}")


def not_negative(**figures: float) -> None:
    """Raise ValueError naming the first figure that is not a finite number of at least zero."""
    for name, value in figures.items():
        if not (_is_finite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number of at least zero, not {value}")


def share(**figures: float) -> None:
    """Raise ValueError naming the first figure that is not between zero and one."""
    for name, value in figures.items():
        if not (_is_finite(value) and 0 <= value <= 1):
            raise ValueError(f"{name} must be between zero and one, not {value}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False
