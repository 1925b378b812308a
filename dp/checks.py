"""Checks of numeric arguments. Each raises ValueError naming the argument, the condition and the value.

A bool is an int to Python and True would pass for a multiplier of one, so it is refused. So is an integer that no
float64 holds, such as 10^400: arithmetic with it raises OverflowError. Every comparison is written so that NaN fails
it.
"""

import math
import numbers
from typing import Final

MOST_BINS: Final = 10_000
"""Rounds of an epoch of bins, at most: beyond, the grid of their sum is too coarse to say anything."""


def require_positive(name: str, value: float) -> None:
    """Require that `value` is a finite number > 0."""
    if not _is_real(value) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a finite number above 0, found {_shown(value)}")


def require_probability(name: str, value: float) -> None:
    """Require that `value` is in [0, 1]."""
    if not _is_real(value) or not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number in [0, 1], found {_shown(value)}")


def require_delta(value: float) -> None:
    """Require that a target failure probability is in (0, 1)."""
    if not _is_real(value) or not 0 < value < 1:
        raise ValueError(f"delta: expected a number in (0, 1), found {_shown(value)}")


def require_count(name: str, value: int, *, at_least: int = 0, at_most: int | None = None) -> None:
    """Require that `value` is an int >= `at_least`, and <= `at_most` if there is one."""
    if not isinstance(value, int) or not _is_real(value) or value < at_least:
        raise ValueError(f"{name}: expected an integer of at least {at_least}, found {_shown(value)}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name}: expected at most {at_most}, found {_shown(value)}")


def require_bins(bins: int) -> None:
    """Require that `bins` is a number of rounds of which a record is in one (`precad.dp.accountants.balls_in_bins`)."""
    require_count("bins", bins, at_least=1, at_most=MOST_BINS)


def require_finite(name: str, value: float) -> None:
    """Require that `value` is a finite real number."""
    if not _is_real(value) or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, found {_shown(value)}")


def require_non_negative(name: str, value: float, *, may_be_infinite: bool = False) -> None:
    """Require that `value` is >= 0, and finite unless it `may_be_infinite`."""
    if not _is_real(value) or not value >= 0 or (math.isinf(value) and not may_be_infinite):
        kind = "number" if may_be_infinite else "finite number"
        raise ValueError(f"{name}: expected a {kind} of at least 0, found {_shown(value)}")


def require_delta_or_zero(value: float) -> None:
    """Require the delta of a guarantee that is given in [0, 1): pure differential privacy is one."""
    if not _is_real(value) or not 0 <= value < 1:
        raise ValueError(f"delta: expected a number in [0, 1), found {_shown(value)}")


def require_order(alpha: float) -> None:
    """Require that a Renyi order is > 1 and finite."""
    if not _is_real(alpha) or not 1 < alpha < math.inf:
        raise ValueError(f"alpha: expected a finite number above 1, found {_shown(alpha)}")


def integral(name: str, value: float, *, at_least: int = 0) -> int:
    """Return `value` as an int. It must be integral, 8 or 8.0, and >= `at_least`."""
    if not _is_real(value) or not math.isfinite(value) or value != int(value) or value < at_least:
        raise ValueError(f"{name}: expected an integer of at least {at_least}, found {_shown(value)}")
    return int(value)


def keep_as_floats(event: object, *names: str) -> None:
    """Replace fields of other types than Python's numbers by floats, which a cache takes for the same.

    In NumPy's shorter floats an epsilon would be rounded to their few digits, down as well as up.
    """
    for name in names:
        if type(value := getattr(event, name)) not in (int, float):
            object.__setattr__(event, name, float(value))


def require_one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Require that `value` is one of the strings in `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, found {value!r}")


def _is_real(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as messages show it. Python refuses to write an integer of more than 4300 digits."""
    if isinstance(value, int) and not isinstance(value, bool) and not _is_real(value):
        return "an integer beyond float64"
    return str(value) if isinstance(value, numbers.Real) else repr(value)
