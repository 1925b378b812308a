"""Test that noise is as printed in every part of it: in rounds, at coordinates, far out, and near zero.

One standard deviation of all observations together says nothing of a round without noise among many. Nor does it tell a
Gaussian from another law that has it. Let each of n observations be a Gaussian of standard deviation s >= sigma, the
printed one, rounded to a grid of step g.

* The squares of one coordinate, or of a part (`parts`), sum to at least sigma^2 times a chi-squared variable.
* The largest |value| is at most x with a chance of at most (2 Phi((x + g/2) / sigma) - 1)^n.
* |value| <= h has a chance of at most 2 Phi((h + g/2) / sigma) - 1, so the number of them is at most binomial. Laws
  with a higher middle have more.
* |value| > h has a chance of at least 2 Phi(-(h + g/2) / sigma). Laws with shorter tails have fewer.

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

from precad.dp.auditing.parts import Parts
from precad.dp.checks import require_delta, require_positive

Array = NDArray[np.float64]

_NEAR: Final = (0.05, 0.5)
"""Near zero is within so many standard deviations: few of them for atoms, more for another law."""
_FAR: Final = 3.0
"""Far out is beyond so many."""
_ENOUGH: Final = 64
"""Observations, at least, that are multiples of twice the step by a chance of 2^-64."""
_N_TESTS: Final = 5


def uneven_noise(residuals: Array, noise: float, alpha: float, step: float = 0.0) -> Iterator[str]:
    """Yield what the noise lacks; nothing, but for a chance of alpha, where it is Gaussian of at least that multiplier.

    residuals: (T, m). noise: the printed multiplier. step: of the grid, in the same unit.
    """
    require_positive("noise", noise)
    require_delta(alpha)
    level, n, half = alpha / _N_TESTS, residuals.size, step / 2 / noise
    yield from _small_parts(residuals / noise, noise, level)
    far_out = np.abs(residuals) / noise
    farthest = float(far_out.max())
    if n * math.log(max(2 * float(ndtr(farthest + half)) - 1, 1e-300)) < math.log(level):
        yield f"noise: expected Gaussian tails, found none of {n} beyond {farthest:.3g} standard deviations"
    beyond, chance = int((far_out > _FAR).sum()), 2 * float(ndtr(-_FAR - half))
    if float(binom.cdf(beyond, n, chance)) < level:
        yield f"noise: expected Gaussian tails, found {beyond} of {n} beyond {_FAR:g} standard deviations"
    for within in _NEAR:
        near, chance = int((far_out <= within).sum()), 2 * float(ndtr(within + half)) - 1
        if float(binom.sf(near - 1, n, chance)) < level:
            yield f"noise: expected at most {n * chance:.0f} of {n} near zero, within {within}, found {near}"


def _small_parts(scaled: Array, noise: float, level: float) -> Iterator[str]:
    """Yield the part, and the coordinate, whose noise is least likely so small. scaled: over the printed one."""
    squares, parts = np.square(scaled), Parts(*scaled.shape)
    of_parts, of_canaries = parts.sums(squares), squares.sum(axis=0)
    sizes = parts.sums(np.ones_like(squares))
    chances, n_tests = chi2.cdf(of_parts, sizes), of_parts.size + of_canaries.size
    place, canary = np.unravel_index(int(chances.argmin()), chances.shape), int(of_canaries.argmin())
    for chance, mean, where in (
        (chances[place], of_parts[place] / sizes[place], parts.where(place)),
        (chi2.cdf(of_canaries[canary], len(squares)), of_canaries[canary] / len(squares), f"canary {canary}"),
    ):
        if float(chance) * n_tests < level:
            std = noise * math.sqrt(float(mean))
            yield f"noise: expected a multiplier of {noise:.6g} everywhere, found {std:.4g} in {where}"


def coarse_noise(residuals: Array, step: float) -> Iterator[str]:
    """Yield what steps of the grid the noise of one server lacks: low digits of the sum would show beneath it."""
    if step <= 0 or residuals.size < _ENOUGH:
        return
    common = int(np.gcd.reduce(np.abs(np.rint(residuals / step)).astype(np.int64).ravel()))
    if common > 1:
        yield f"noise: expected draws of every step of the grid, found multiples of {common} steps alone"
