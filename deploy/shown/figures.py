"""How figures about privacy are written: a bound rounded up and marked <=, all else marked ~, infinity as a word.

A bound above `LARGEST_USEFUL` is written as no useful bound. Its figure is in JSON alone. An infinite one is no bound.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final

from precad.deploy.shown.error_bars import percent
from precad.dp.accountants.pld import Label
from precad.dp.accountants.slack import NO_BOUND

LARGEST_USEFUL: Final = 100.0
"""An epsilon above it says nothing: the odds of a guess may change by a factor of e^100, which is above 10^43."""
NO_USEFUL_BOUND: Final = "no useful bound"
AUDIT_METHODS: Final = {"per_round": "per round", "f_dp": "f-DP in one run", "strict": "strict in one run"}
"""How each figure of an audit is called, wherever it stands; the default one first."""


def says_nothing(epsilon: float) -> bool:
    """Tell whether an epsilon is finite, and too large to mean anything."""
    return LARGEST_USEFUL < epsilon < math.inf


def plain(epsilon: float) -> float | str:
    """Return an epsilon for JSON, which has no infinity: then the string "inf"."""
    return epsilon if math.isfinite(epsilon) else "inf"


def rounded_up(epsilon: float | str, decimals: int = 2) -> str:
    """Return a bound with so many decimals, which is one still; infinite ones, of JSON too, as a word."""
    if not math.isfinite(value := float(epsilon)):
        return "inf"
    return f"{math.ceil(value * 10**decimals) / 10**decimals:.{decimals}f}"


def audit_label(confidence: float) -> str:
    """Return how a figure of an audit is labelled; never as a bound, and with every digit of the confidence."""
    return f"audit ({percent(confidence)} %)"


def rounded_down(share: float, decimals: int = 3) -> str:
    """Return so many decimals, downwards: a certified share stays one."""
    return f"{math.floor(share * 10**decimals) / 10**decimals:.{decimals}f}"


def at_most(epsilon: float | str, decimals: int = 2) -> str:
    """Return a bound with its sign, or that it is none, or none which is of any use."""
    if math.isinf(float(epsilon)):
        return NO_BOUND
    return NO_USEFUL_BOUND if says_nothing(float(epsilon)) else f"<= {rounded_up(epsilon, decimals)}"


def three_digits(epsilon: float) -> str:
    """Return a bound with its sign and three significant digits, rounded up, or that it is of no use."""
    if says_nothing(epsilon):
        return NO_USEFUL_BOUND
    if not math.isfinite(epsilon):
        return NO_BOUND
    return f"<= {three_digits_up(epsilon)}"


def three_digits_up(epsilon: float) -> str:
    """Return three significant digits, rounded up: a bound stays one."""
    return _significant(epsilon, 3, ROUND_CEILING)


def three_digits_down(epsilon: float) -> str:
    """Return three significant digits, rounded down: what an attack showed stays shown."""
    return _significant(epsilon, 3, ROUND_FLOOR)


def shown(epsilon: float | str, label: Label) -> str:
    """Return three decimals, a bound rounded up and marked <=, all else marked ~."""
    if math.isinf(value := float(epsilon)):
        return NO_BOUND
    if says_nothing(value):
        return NO_USEFUL_BOUND
    return f"<= {rounded_up(value, 3)}" if label is Label.BOUND else f"~ {value:.3f}"


def within(radius: float, width: float = 1.0) -> str:
    """Say how far a mean is from its expectation, rounded up, of values in an interval of that width: at most all."""
    return f"within {rounded_up(radius, 3)}" if radius < width else f"within {width:g}, the whole range: VACUOUS"


def at_least(noise: float) -> str:
    """Return four digits, rounded up: noise that is enough stays enough when it is typed in again."""
    return _significant(noise, 4, ROUND_CEILING)


def _significant(value: float, n_digits: int, rounding: str) -> str:
    """Return so many significant digits, without an exponent."""
    return f"{Context(prec=n_digits, rounding=rounding).plus(Decimal(value)):f}"
