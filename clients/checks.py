"""Checks of numeric arguments. Each raises ArgumentError naming the argument, the condition and the value."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

from precad.clients.errors import ArgumentError


def is_number(value: object) -> TypeGuard[float]:
    """Return whether it is a real number. A truth value is none, and neither is a text."""
    return isinstance(value, Real) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a value as a message shows it: a text in quotes, so that it is no number."""
    return repr(value) if isinstance(value, str) else str(value)


def require_positive(name: str, value: float) -> None:
    """Raises ArgumentError unless it is a number, positive and finite."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ArgumentError(f"{name}: expected a finite number above 0, found {shown(value)}")


def require_finite(name: str, value: float) -> None:
    """Raises ArgumentError unless it is a finite number."""
    if not is_number(value) or not -math.inf < value < math.inf:  # integers may be too large for a float
        raise ArgumentError(f"{name}: expected a finite number, found {shown(value)}")


def require_integer(name: str, value: object) -> None:
    """Raises ArgumentError unless it is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(f"{name}: expected an integer, found {shown(value)}")


def require_count(name: str, value: object, *, at_least: int = 0) -> None:
    """Raises ArgumentError unless it is an integer >= at_least."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ArgumentError(f"{name}: expected an integer of at least {at_least}, found {shown(value)}")


def require_class(name: str, value: object, n_classes: int) -> None:
    """Raises ArgumentError unless it is the number of one of so many classes."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_classes:
        raise ArgumentError(f"{name}: expected a class in [0, {n_classes - 1}], found {shown(value)}")
