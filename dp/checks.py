"""Checks of numeric arguments. Each raises ValueError naming the argument, the condition and the value.

A bool is an int to Python and True would pass for a multiplier of one, so it is refused. Every comparison is
written so that NaN fails it.
"""

import math


def require_positive(name: str, value: float) -> None:
    """`value` must be a finite number > 0."""
    if isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value}")


def require_probability(name: str, value: float) -> None:
    """`value` must be in [0, 1]."""
    if isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def require_delta(value: float) -> None:
    """A target failure probability must be in (0, 1)."""
    if isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"delta must be in (0, 1), got {value}")


def require_count(name: str, value: int, *, at_least: int = 0) -> None:
    """`value` must be an int >= `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}")
