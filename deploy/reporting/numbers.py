"""How the page writes numbers: bounds rounded up, shares to three decimals, amounts with their unit."""

from __future__ import annotations

import math
from enum import StrEnum

from precad.deploy.shown.figures import NO_USEFUL_BOUND, says_nothing, three_digits_up
from precad.dp.accountants.slack import NO_BOUND


class Format(StrEnum):
    """Name the kind of a number."""

    SHARE = "share"
    EPSILON = "epsilon"
    COUNT = "count"
    SECONDS = "seconds"
    BYTES = "bytes"


def shown(value: float | None, kind: Format) -> str:
    """Return the number for people; the page's script writes the same."""
    if value is None or not math.isfinite(value):
        return "none" if value is None else NO_BOUND if kind is Format.EPSILON else "∞"
    match kind:
        case Format.SHARE:
            return f"{value:.3f}"
        case Format.EPSILON:
            return NO_USEFUL_BOUND if says_nothing(value) else three_digits_up(value)
        case Format.COUNT:
            return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
        case Format.SECONDS:
            return _seconds(value)
        case Format.BYTES:
            return _bytes(value)


_ALMOST = 0.9995
"""From there on three digits round up to the next unit."""


def _seconds(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.3g} s" if value >= _ALMOST else f"{value * 1e3:.3g} ms"


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size * _ALMOST:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def power_of_ten(value: float) -> str:
    """Return a small probability: 10⁻⁵, 2.9·10⁻³."""
    digits, _, exponent = f"{value:e}".partition("e")
    mantissa = f"{float(digits):g}"
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return power if mantissa == "1" else f"{mantissa}·{power}"


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
