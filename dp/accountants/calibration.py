"""Calibrate to a budget: the smallest noise, or the most rounds, whose epsilon an accountant puts within the target.

Each result is checked with the accountant itself before it is returned, so a bound stays a bound.
"""

import math
from collections.abc import Callable

from precad.dp.accountants.pld import Event, PrivacyAccountant
from precad.dp.checks import require_count, require_delta, require_positive

_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e6


def smallest_noise_multiplier(
    target_epsilon: float,
    event_of: Callable[[float], Event],
    rounds: int,
    delta: float,
    accountant: PrivacyAccountant,
    *,
    relative_tolerance: float = 1e-4,
) -> float:
    """The least sigma, to that tolerance from above, with epsilon of `rounds` rounds of event_of(sigma) <= target.

    1e-2, where the search starts, if that is enough.

    Raises: ValueError if not even sigma = 1e6 is enough.
    """
    require_positive("target_epsilon", target_epsilon)
    require_count("rounds", rounds)
    require_delta(delta)

    def is_enough(sigma: float) -> bool:
        return accountant.epsilon(event_of(sigma), rounds, delta) <= target_epsilon

    if is_enough(_LEAST_NOISE):
        return _LEAST_NOISE
    low, high = 0.5, 1.0
    while not is_enough(high):
        if high > _MOST_NOISE:
            raise ValueError(f"target_epsilon must be reachable with a noise multiplier <= 1e6, got {target_epsilon}")
        low, high = high, 2 * high
    while is_enough(low):
        low, high = low / 2, low
    while high > low * (1 + relative_tolerance):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def most_rounds(
    target_epsilon: float, event: Event, delta: float, accountant: PrivacyAccountant, *, at_most: int = 1_000_000
) -> int:
    """Return the largest number of rounds with epsilon <= target; `at_most` is where the search stops."""
    require_positive("target_epsilon", target_epsilon)
    require_delta(delta)
    require_count("at_most", at_most, at_least=1)

    return largest(lambda rounds: accountant.epsilon(event, rounds, delta) <= target_epsilon, at_most)


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
