"""Test that noise is as printed in every part of it: in each round, at each coordinate, far out, and near zero.

One standard deviation of all observations together says nothing of a round without noise among many. Nor does it tell a
Gaussian from another law that has it. Let each of n observations be a Gaussian of standard deviation s >= sigma, the
printed one, rounded to a grid of step g.

* The squares of one round, or of one coordinate, sum to at least sigma^2 times a chi-squared variable.
* The largest |value| is at most x with a chance of at most (2 Phi((x + g/2) / sigma) - 1)^n.
* |value| <= h has a chance of at most (2 h + g) / (sigma sqrt(2 pi)), so the number of them is at most binomial.

More noise than printed is no fault, and is accused no more often. On the grid, all observations are multiples of 2 g
with a chance of 2^-n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom, chi2

from precad.dp.checks import require_delta, require_positive

Array = NDArray[np.float64]

_NEAR: Final = 0.05
"""Near zero is within so many standard deviations."""
_ENOUGH: Final = 64
"""Observations, at least, that are multiples of twice the step by a chance of 2^-64."""
_N_TESTS: Final = 3


def uneven_noise(residuals: Array, noise: float, alpha: float, step: float = 0.0) -> Iterator[str]:
    """Yield what the noise lacks; nothing, but for a chance of alpha, where it is Gaussian of at least that multiplier.

    residuals: (T, m). noise: the printed multiplier. step: of the grid, in the same unit.
    """
    require_positive("noise", noise)
    require_delta(alpha)
    level, n = alpha / _N_TESTS, residuals.size
    squares = np.square(residuals)
    rounds, canaries = residuals.shape
    for what, sums, freedom in (("round", squares.sum(axis=1), canaries), ("canary", squares.sum(axis=0), rounds)):
        least = int(sums.argmin())
        if float(chi2.cdf(sums[least] / noise**2, freedom)) * (rounds + canaries) < level:
            std = math.sqrt(float(sums[least]) / freedom)
            yield f"noise: expected a multiplier of {noise:.6g} everywhere, found {std:.4g} in {what} {least}"
    farthest = float(np.abs(residuals).max()) / noise
    if n * math.log(max(2 * float(ndtr(farthest + step / 2 / noise)) - 1, 1e-300)) < math.log(level):
        yield f"noise: expected Gaussian tails, found none of {n} beyond {farthest:.3g} standard deviations"
    near = int((np.abs(residuals) <= _NEAR * noise).sum())
    chance = min(1.0, (2 * _NEAR + step / noise) / math.sqrt(2 * math.pi))
    if float(binom.sf(near - 1, n, chance)) < level:
        yield f"noise: expected at most {n * chance:.0f} of {n} near zero, found {near}"


def coarse_noise(residuals: Array, step: float) -> Iterator[str]:
    """Yield what steps of the grid the noise of one server lacks: low digits of the sum would show beneath it."""
    if step <= 0 or residuals.size < _ENOUGH:
        return
    common = int(np.gcd.reduce(np.abs(np.rint(residuals / step)).astype(np.int64).ravel()))
    if common > 1:
        yield f"noise: expected draws of every step of the grid, found multiples of {common} steps alone"
