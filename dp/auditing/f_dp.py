"""Refute the accountant's own curves by guesses in one run.

Let g(x) be the most that an event of chance x can have once a coin is turned. Let p_k be the chance of exactly k
correct ones of r guesses. Turn a random one of the m coins: the guesses stay, and a correct one becomes wrong. So

    sum over k >= i of (k/m) p_k  <=  g( sum over k >= i of ((r - k + 1)/m) p_(k-1) )        for every i.

Starting from "c or more correct with chance alpha", this bounds from below what is left for i = c-1, .., 0. Where that
adds up to more than 1, so many correct guesses have a chance below alpha. Source: Mahloujifar, Melis, Chaudhuri,
"Auditing f-Differential Privacy in One Run", 2024; with guesses left open as in Steinke et al.

A coin is fair. Half of an event lies where it says in, and is bounded from out, the other half conversely. For every
epsilon the first has the record's own delta of added from left out, and the second that of left out from added. So g is
of the mean of both: g(x) = min over epsilon of e^epsilon x + (delta_1(epsilon) + delta_2(epsilon)) / 2. The larger one
alone, as for guesses of no fair coin, would refute less.

The family of hypotheses are the rounds of the statement with another noise multiplier. More noise is refuted first; the
least noise that is refuted gives the figure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from precad.dp.accountants.group_mixture import Direction, delta_curve
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.auditing.guesses import Array, Guesses
from precad.dp.checks import require_count, require_delta

Least = Callable[[float], float]
"""y to the least x with g(x) >= y."""

_RATIO: Final = 1.01
_LEAST, _MOST = -300, 418
"""Powers of the ratio that are tried as factors of the statement's noise: 0.05 to 64. A grid, so that seats share
curves."""
_MOST_EPSILON: Final = 600.0
"""Points of a curve beyond it say nothing in float64."""


@functools.lru_cache(maxsize=64)
def least_of(event: SampledGaussian, rounds: int) -> Least:
    """Return the inverse of g for so many rounds: for Poisson sampling from the accountant's own delta curves."""
    require_count("rounds", rounds, at_least=1)
    if event.sampling_rate == 1:
        mu = math.sqrt(rounds) / event.noise_multiplier
        return lambda y: float(ndtr(ndtri(y) - mu))
    curves = [delta_curve(1, event.sampling_rate, event.noise_multiplier, rounds, d) for d in Direction]
    epsilons = np.unique(np.concatenate([curve.epsilons for curve in curves]))
    return _envelope(epsilons, np.mean([np.interp(epsilons, c.epsilons, c.deltas) for c in curves], axis=0))


def _envelope(epsilons: Array, deltas: Array) -> Least:
    """Return y -> max over epsilon of the x that y <= e^epsilon x + delta(epsilon) leaves, negative epsilon too."""
    epsilons, deltas = epsilons[epsilons < _MOST_EPSILON], deltas[epsilons < _MOST_EPSILON]
    shrunk, grown = np.exp(-epsilons), np.exp(epsilons)
    slopes = np.concatenate([shrunk, grown])
    offsets = np.concatenate([shrunk * deltas, grown - 1 + deltas])
    grid = np.concatenate([[0.0], np.geomspace(1e-12, 0.5, 1500), 1 - np.geomspace(0.5, 1e-9, 500)[1:], [1.0]])
    values = np.array([max(0.0, float(np.max(y * slopes - offsets))) for y in grid])
    # Between two points the chord lies above a convex function; the point before it does not.
    return lambda y: float(values[np.searchsorted(grid, y, side="right") - 1])


def is_refuted(guesses: Guesses, least: Least, alpha: float) -> bool:
    """Tell whether so many correct guesses have a chance below alpha under the curve."""
    require_delta(alpha)
    m, made, correct = guesses.canaries, guesses.made, guesses.correct
    if correct == made:  # all were right: one fewer is as likely at least
        correct = made - 1
    if correct <= 0:
        return False
    right, wrong = alpha * correct / m, alpha * (made - correct) / m
    for i in range(correct - 1, -1, -1):
        at_least = max(wrong, least(min(right, 1.0)))
        right, wrong = right + i / (made - i) * (at_least - wrong), at_least
        if right + wrong > made / m:
            return True
    return False


def refuted_epsilon(guesses: Guesses, event: SampledGaussian, rounds: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon at delta, of these rounds with another noise, that the guesses refute; 0 for none.

    The noise multiplier is searched on a grid of steps of 1 %, and rounded towards more noise.
    """
    power, refuting = _least_refuted([guesses], event, rounds, 1 - confidence)
    return PldAccountant().epsilon(_with_noise(event, power), rounds, delta) if refuting else 0.0


def best_of(candidates: Sequence[Guesses], event: SampledGaussian, rounds: int, confidence: float) -> int:
    """Return the index of those guesses that refute the largest epsilon; the first of equal ones."""
    _, refuting = _least_refuted(candidates, event, rounds, 1 - confidence)
    return refuting[0] if refuting else 0


def _with_noise(event: SampledGaussian, power: int) -> SampledGaussian:
    return SampledGaussian(event.sampling_rate, event.noise_multiplier * _RATIO**power)


def _least_refuted(
    candidates: Sequence[Guesses], event: SampledGaussian, rounds: int, alpha: float
) -> tuple[int, list[int]]:
    """Return the power of the least noise that any of them refutes, and whose it is; nobody's where it is above all."""

    def refuting(power: int, among: Sequence[int]) -> list[int]:
        least = least_of(_with_noise(event, power), rounds)
        return [i for i in among if is_refuted(candidates[i], least, alpha)]

    low, high = _LEAST, _MOST
    found = refuting(high, range(len(candidates)))
    while found and high - low > 1:
        middle = (low + high) // 2
        if there := refuting(middle, found):
            high, found = middle, there
        else:
            low = middle
    return high, found
