"""Write an estimate and its error bar for people: the bar's ends outwards, so that what is printed covers as much."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Final

_EXACT: Final = Context(prec=400)
"""Digits enough for any two floats side by side."""
_MOST_DIGITS: Final = 16
"""Larger numbers, and smaller ones, are written with an exponent."""


def estimate_and_bar(value: float, low: float, high: float) -> tuple[str, str]:
    """Return the estimate and its error bar, low <= value <= high, in steps of at most a hundredth of the bar."""
    if not all(map(math.isfinite, (value, low, high))):
        return f"{value:g}", f"[{low:g}, {high:g}]"
    first, middle, last = (Decimal(repr(float(number))) for number in (low, value, high))
    if not (width := _EXACT.subtract(last, first)):
        return _written(middle), f"[{_written(first)}, {_written(last)}]"
    step = Decimal(1).scaleb(width.adjusted() - 2)
    rounded = ((first, ROUND_FLOOR), (middle, ROUND_HALF_EVEN), (last, ROUND_CEILING))
    start, shown, end = (_written(number.quantize(step, rounding, context=_EXACT)) for number, rounding in rounded)
    return shown, f"[{start}, {end}]"


def percent(share: float) -> str:
    """Return a share in percent, with every digit."""
    return f"{(100 * Decimal(repr(float(share)))).normalize():f}"


def _written(number: Decimal) -> str:
    """Return a number without zeros after its last digit, nor the sign of a zero."""
    if not number:
        return "0"
    plain = number.normalize(_EXACT)
    return f"{plain:f}" if abs(plain.adjusted()) < _MOST_DIGITS else f"{plain:e}"
