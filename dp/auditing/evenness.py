"""Test that noise is as printed in every part of it: in rounds, at coordinates, far out, and near zero.

One standard deviation of all observations together says nothing of a round without noise among many. Nor does it tell a
Gaussian from another law that has it. Let each of n observations be a Gaussian of standard deviation s >= sigma, the
printed one, rounded to a grid of step g.

* The squares of one coordinate, or of a part (`parts`), sum to at least sigma^2 times a chi-squared variable.
* The largest |value| is at most x with a chance of at most (2 Phi((x + g/2) / sigma) - 1)^n.
* |value| <= h has a chance of at most 2 Phi((h + g/2) / sigma) - 1, so the number of them is at most binomial. Laws
  with a higher middle have more.
* |value| > h has a chance of at least 2 Phi(-(h + g/2) / sigma). Laws with shorter tails have fewer.
* A coordinate's sum is below its law's quantile of chance q with a chance of at most q. So the number of these is at
  most binomial. Noise that is smaller at random coordinates has more of them, and is larger at others.
* Fourth moments over squared second ones have a known mean and variance in each round, whatever its noise is. Sums of
  few uniforms have less. Their law has a long tail above, so the normal law bounds that below.

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

from precad.dp.auditing.parts import Array, Parts
from precad.dp.checks import require_delta, require_positive

_NEAR: Final = (0.05, 0.5)
"""Near zero is within so many standard deviations: few of them for atoms, more for another law."""
_FAR: Final = 3.0
"""Far out is beyond so many."""
_ENOUGH: Final = 64
"""Observations, at least, that are multiples of twice the step by a chance of 2^-64."""
_SMALL: Final = (0.1, 0.01, 0.001)
"""Chances of a coordinate's noise to be small: many by little, or few by much."""
_ENOUGH_FOR_MOMENTS: Final = 1000
"""Observations, at least, whose fourth moments are judged."""
_N_TESTS: Final = 8


def uneven_noise(
    residuals: Array, noise: float, alpha: float, step: float = 0.0, drawn: NDArray[np.bool_] | None = None
) -> Iterator[str]:
    """Yield what the noise lacks; nothing, but for a chance of alpha, where it is Gaussian of at least that multiplier.

    residuals: (T, m). noise: the printed multiplier. step: of the grid, in the same unit.
    drawn: (T, m). It says which canaries were, where noise may be another.
    """
    require_positive("noise", noise)
    require_delta(alpha)
    level, n, half = alpha / _N_TESTS, residuals.size, step / 2 / noise
    far_out = np.abs(residuals) / noise
    squares = np.square(far_out + 2 * half)  # of at least what was rounded, by one server or by each
    yield from _small_parts(squares, noise, level)
    yield from _many_small(squares.sum(axis=0), len(squares), level / len(_SMALL))
    yield from _short_tails(residuals, level)
    yield from () if drawn is None else _where_drawn(squares, drawn, noise, level)
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


def _small_parts(squares: Array, noise: float, level: float) -> Iterator[str]:
    """Yield the part, and the coordinate, whose noise is least likely so small. squares: over the printed variance."""
    parts = Parts(*squares.shape)
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


def _many_small(of_canaries: Array, rounds: int, level: float) -> Iterator[str]:
    """Yield whether too many coordinates have little noise, each by itself. of_canaries: (m,), sums of squares."""
    n, chances = len(of_canaries), chi2.cdf(of_canaries, rounds)
    for small in _SMALL:
        found = int((chances <= small).sum())
        if float(binom.sf(found - 1, n, small)) < level:
            yield f"noise: expected at most {n * small:.3g} of {n} canaries with so little noise, found {found}"


def _where_drawn(squares: Array, drawn: NDArray[np.bool_], noise: float, level: float) -> Iterator[str]:
    """Yield whether noise is smaller at canaries that were drawn, or at those that were not."""
    for those, what in ((squares[drawn], "drawn"), (squares[~drawn], "not drawn")):
        if those.size and float(chi2.cdf(those.sum(), those.size)) < level / 2:
            std = noise * math.sqrt(float(those.mean()))
            yield f"noise: expected a multiplier of {noise:.6g} everywhere, found {std:.4g} at canaries {what}"


def _short_tails(residuals: Array, level: float) -> Iterator[str]:
    """Yield whether fourth moments are too small."""
    m, squares = residuals.shape[1], np.square(residuals)
    lengths = squares.sum(axis=1)
    if m < 2 or residuals.size < _ENOUGH_FOR_MOMENTS or not lengths.all():
        return
    found = float((np.square(squares).sum(axis=1) * m / np.square(lengths)).mean())
    mean = 3 * m / (m + 2)
    variance = (9 * m + 96) * m**2 / ((m + 2) * (m + 4) * (m + 6)) - mean**2
    if float(ndtr((found - mean) / math.sqrt(variance / len(residuals)))) < level:
        yield f"noise: expected Gaussian tails, found fourth moments of {found:.4g} for {mean:.4g}"


def coarse_noise(residuals: Array, step: float) -> Iterator[str]:
    """Yield what steps of the grid the noise of one server lacks: low digits of the sum would show beneath it."""
    if step <= 0 or residuals.size < _ENOUGH:
        return
    common = int(np.gcd.reduce(np.abs(np.rint(residuals / step)).astype(np.int64).ravel()))
    if common > 1:
        yield f"noise: expected draws of every step of the grid, found multiples of {common} steps alone"
