"""Refute an epsilon by guesses in one run, with no assumption but that the coins are fair and independent.

Source: Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS '23. Let a training be (epsilon,
delta)-DP. Then Binomial(r, e^epsilon / (1 + e^epsilon)) dominates the number of correct ones of r guesses, up to a term
linear in m delta.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from precad.dp.auditing.guesses import Guesses
from precad.dp.checks import require_delta, require_non_negative

_PRECISION = 1e-4
_HIGHEST = 64.0


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of so many correct guesses, where the mechanism is (epsilon, delta)-DP.

    Raises: ValueError for an epsilon below 0 or a delta outside (0, 1).
    """
    require_non_negative("epsilon", epsilon)
    require_delta(delta)
    if guesses.correct == 0:
        return 1.0
    right = float(expit(epsilon))
    tail = float(binom.sf(guesses.correct - 1, guesses.made, right))
    steps = np.arange(1, guesses.correct + 1)
    below = np.cumsum(binom.pmf(guesses.correct - steps, guesses.made, right))
    return min(1.0, tail + 2 * guesses.canaries * delta * float(np.max(below / steps)))


def refuted_epsilon(guesses: Guesses, delta: float, confidence: float) -> float:
    """Return the largest epsilon that the guesses refute with this confidence, within 1e-4 below; 0 for none."""
    alpha = 1 - confidence
    require_delta(alpha)
    if p_value(guesses, 0.0, delta) > alpha:
        return 0.0
    low, high = 0.0, _HIGHEST
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(guesses, middle, delta) <= alpha else (low, middle)
    return low


def best_of(candidates: Sequence[Guesses], delta: float, confidence: float) -> int:
    """Return the index of those guesses that refute the largest epsilon; the first of equal ones."""
    found = [refuted_epsilon(guesses, delta, confidence) for guesses in candidates]
    return found.index(max(found))
