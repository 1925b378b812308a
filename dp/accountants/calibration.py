"""Calibrate to a budget: the smallest noise, or the most rounds, whose epsilon an accountant puts within the target.

Each result is checked with the accountant itself before it is returned, so a bound stays a bound.
"""

import functools
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

from precad.dp.accountants.pld import Event, PrivacyAccountant
from precad.dp.checks import require_count, require_delta, require_positive

_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e6
_DIGITS: Final = 4
"""Decimal digits of a multiplier that is written down: within a thousandth of the least one."""
_UPWARDS: Final = Context(prec=_DIGITS, rounding=ROUND_CEILING)
_FAR = 50.0
"""Logarithm at which an excess of epsilon over its target is cut off: it may be infinite, or none at all."""


def smallest_noise_multiplier(
    target_epsilon: float,
    event_of: Callable[[float], Event],
    rounds: int,
    delta: float,
    accountant: PrivacyAccountant,
    *,
    relative_tolerance: float = 1e-4,
) -> float:
    """Return the least sigma, to that tolerance from above, with epsilon of `rounds` rounds of event_of(sigma) <=
    target.

    1e-2, where the search starts, if that is enough.

    Raises: ValueError if not even sigma = 1e6 is enough.
    """
    from scipy.optimize import brentq  # half a second, which a start does not wait for

    require_positive("target_epsilon", target_epsilon)
    require_count("rounds", rounds)
    require_delta(delta)

    @functools.cache
    def excess(log_sigma: float) -> float:
        return _excess(accountant.epsilon(event_of(math.exp(log_sigma)), rounds, delta), target_epsilon)

    least, most = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    if excess(least) <= 0:
        return _LEAST_NOISE
    low = high = 0.0
    while excess(low) <= 0:  # epsilon falls at least as fast as noise grows: mostly one step
        low, high = max(least, low + 1.1 * min(excess(low), -0.01)), low
    while excess(high) > 0:
        if high == most:
            raise ValueError(
                f"target_epsilon: expected one that a noise multiplier of at most 1e6 reaches, found {target_epsilon}"
            )
        low, high = high, min(most, high + 1.1 * max(excess(high), 0.01))
    half = math.log1p(relative_tolerance) / 2
    found = float(brentq(excess, low, high, xtol=half))
    while excess(found) > 0:  # the root is at most half the tolerance away
        found += half
    return math.exp(found)


def short_noise_multiplier(
    target_epsilon: float,
    event_of: Callable[[float], Event],
    rounds: int,
    delta: float,
    accountant: PrivacyAccountant,
    *,
    at_least: float = _LEAST_NOISE,
) -> float:
    """Return the least sigma of four decimal digits, not below `at_least`, with epsilon of `rounds` rounds <= target.

    Parties that calculate it apart must find the same one. So it follows from two epsilons alone, of this multiplier
    and the next smaller one, and not from where a root finder stopped. Two machines differ only if one of these
    epsilons is as close to the target as their rounding errors.

    Raises: ValueError as `smallest_noise_multiplier`.
    """

    def is_enough(sigma: Decimal) -> bool:
        return accountant.epsilon(event_of(float(sigma)), rounds, delta) <= target_epsilon

    require_positive("target_epsilon", target_epsilon)
    floor = _UPWARDS.create_decimal_from_float(at_least)
    if is_enough(floor):
        return float(floor)
    found = smallest_noise_multiplier(
        target_epsilon,
        lambda sigma: event_of(max(sigma, at_least)),
        rounds,
        delta,
        accountant,
        relative_tolerance=1e-5,
    )
    sigma = _UPWARDS.create_decimal_from_float(found)
    while not is_enough(sigma):
        sigma = _UPWARDS.next_plus(sigma)
    while is_enough(less := _UPWARDS.next_minus(sigma)):
        sigma = less
    return float(sigma)


def most_rounds(
    target_epsilon: float, event: Event, delta: float, accountant: PrivacyAccountant, *, at_most: int = 1_000_000
) -> int:
    """Return the largest number of rounds with epsilon <= target; `at_most` is where the search stops."""
    require_positive("target_epsilon", target_epsilon)
    require_delta(delta)
    require_count("at_most", at_most, at_least=1)

    @functools.cache
    def excess(rounds: int) -> float:
        return _excess(accountant.epsilon(event, rounds, delta), target_epsilon)

    if excess(1) > 0:
        return 0
    low = high = 1
    while excess(high) <= 0:  # epsilon grows at least as fast as the root of the rounds: mostly one step
        if high == at_most:
            return at_most
        low, high = high, min(at_most, math.ceil(1.1 * high * math.exp(min(-2 * excess(high), _FAR))))
    is_halved = True
    while high - low > 1:
        middle = _between(low, high, excess) if is_halved else (low + high) // 2
        width = high - low
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
        is_halved = 2 * (high - low) <= width + 1
    return low


def _excess(epsilon: float, target: float) -> float:
    """Return log(epsilon / target), cut off where epsilon is infinite or zero. The sign says on which side."""
    return min(max(math.log(epsilon / target), -_FAR), _FAR) if epsilon > 0 else -_FAR


def _between(low: int, high: int, excess: Callable[[int], float]) -> int:
    """Return the integer strictly between them that lies below the root of the line through both, in logarithms."""
    part = excess(low) / (excess(low) - excess(high))
    return min(max(math.floor(low * math.pow(high / low, part)), low + 1), high - 1)


def largest(holds: Callable[[int], bool], at_most: int) -> int:
    """Return the largest n <= at_most for which `holds`, which is true at 0 and false for good from some n on."""
    high = 1
    while high <= at_most and holds(high):
        high *= 2
    low, high = high // 2, min(high, at_most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
