"""Checks of numeric arguments. Each raises ArgumentError naming the argument, the condition and the value."""

from __future__ import annotations

import math

from precad.clients.errors import ArgumentError


def require_positive(name: str, value: float) -> None:
    """Raises ArgumentError unless it is positive and finite."""
    if not 0 < value < math.inf:
        raise ArgumentError(f"{name} must be positive and finite, got {value}")


def require_finite(name: str, value: float) -> None:
    """Raises ArgumentError unless it is a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -math.inf < value < math.inf:  # integers may be too large for a float
        raise ArgumentError(f"{name} must be finite, got {value}")


def require_integer(name: str, value: object) -> None:
    """Raises ArgumentError unless it is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(f"{name} must be an integer, got {value}")


def require_count(name: str, value: object, *, at_least: int = 0) -> None:
    """Raises ArgumentError unless it is an integer >= at_least."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ArgumentError(f"{name} must be an integer >= {at_least}, got {value}")


def require_class(name: str, value: object, n_classes: int) -> None:
    """Raises ArgumentError unless it is the number of one of so many classes."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_classes:
        raise ArgumentError(f"{name} must be a class in [0, {n_classes - 1}], got {value}")
