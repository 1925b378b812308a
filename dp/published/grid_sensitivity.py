"""Bound what rounding to fixed point does to sensitivities.

An update of d coordinates is rounded to f fractional bits before it is shared. Rounding moves the difference of two
neighbouring updates by at most 2^-f more per coordinate than the record does. This holds if the rounding is a function
or its randomness is shared by both updates. If each is rounded with randomness of its own, 2^(1-f) takes the place
of 2^-f. Our derivation. All values are bounds. Noise is drawn in the reals and rounded by itself: post-processing, at
no cost.
"""

import math
from typing import Final

from precad.dp.checks import integral, require_one_of, require_positive

_RECORD_STEPS: Final = {
    "nearest": 1.0,
    "toward_zero": 1.0,
    "floor": 1.0,
    "stochastic_shared": 1.0,
    "stochastic_independent": 2.0,
}
_CLIENT_STEPS: Final = {
    "nearest": 0.5,
    "toward_zero": 0.0,
    "floor": 1.0,
    "stochastic": 1.0,  # whose the randomness is does not matter to one vector
    "stochastic_shared": 1.0,
    "stochastic_independent": 1.0,
}
"""Rules by which a coordinate is put on the grid. Submissions use `toward_zero`, under which no norm grows."""


def fixed_point_record_sensitivity(R: float, d: float, f: float, rounding: str) -> float:
    """R + sqrt(d) 2^-f, or R + 2 sqrt(d) 2^-f for stochastic_independent: a record's l2 sensitivity once rounded."""
    require_positive("R", R)
    return R + _slack(d, f, rounding, _RECORD_STEPS)


def fixed_point_client_bound(C: float, d: float, f: float, rounding: str) -> float:
    """C + c sqrt(d) 2^-f, c = 1/2 nearest, 0 toward_zero, 1 floor and stochastic: a client's norm once rounded."""
    require_positive("C", C)
    return C + _slack(d, f, rounding, _CLIENT_STEPS)


def clipped_effective_sigma(sigma: float, R: float, d: float, f: float, rounding: str) -> float:
    """Return sigma R / fixed_point_record_sensitivity: the multiplier that every accountant must be given."""
    require_positive("sigma", sigma)
    return sigma * R / fixed_point_record_sensitivity(R, d, f, rounding)


def _slack(d: float, f: float, rounding: str, steps: dict[str, float]) -> float:
    require_one_of("rounding", rounding, tuple(steps))
    return steps[rounding] * math.ldexp(math.sqrt(integral("d", d, at_least=1)), -integral("f", f))
