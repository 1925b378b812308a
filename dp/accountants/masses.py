"""Masses of sums of independent variables on a grid, each with a bound on what rounding to float64 has moved.

A bound is of all entries together: sum_k |computed_k - exact_k|. Exact means real arithmetic from the same arguments.
With u = 2^-53:

* a lognormal variable's masses are integrals over the cells of the grid. In cells that are narrow in z they are of
  positive terms by Gauss and Legendre: no cancellation, an error relative to the mass. In the few wide ones they are
  differences, whose error is relative to what is subtracted;
* a product is by transforms of N points. Each errs by at most e = L h / (1 - L h) of the 2-norm. Here L = log2 N and
  h = u + 4u (sqrt(2) + u) / (1 - 4u), for weights that are off by at most u. Source: Higham, "Accuracy and Stability of
  Numerical Algorithms", 2nd edition, theorem 24.2, for radix 2. Multiplying adds sqrt(5) u (Brent, Percival,
  Zimmermann, 2007). Exact transforms are at most the 1-norm, and sqrt(N) times the 2-norm. What is multiplied has
  1-norms a, b and 2-norms s, t. With c = min(a t, b s) the 2-norm of what is found is off by at most

      e (a t + b s) + (e + sqrt(5) u) c,

  and the sum over n entries by sqrt(n) times that. Terms of second order are below a thousandth of it;
* factors that are off by d and f themselves add d b + f a + d f.

SciPy's transforms have passes of other radices too. That these err by no more than radix 2 is taken for granted. Tests
compare products with exact integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.special import ndtr

Array = NDArray[np.float64]

_U: Final = 2.0**-53
_SECOND_ORDER: Final = 1.001
_NARROW: Final = 0.25
"""Width in z of a cell that is integrated."""
_REACH: Final = 10.0
"""Largest |z| there: what is beyond is at most 1e-23."""
_FARTHEST: Final = 40.0
"""Largest |z| with a distribution function above 0 in float64."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
"""With 8 nodes the rule's own error in a narrow cell is below 2e-15 of its mass. The integrand's 16th derivative is
below (|z| + 1 / sigma)^16 times the integrand, sigma at least 0.25. In the error it has the factor
0.25^17 (8!)^4 / (17 (16!)^3)."""
_OF_RULE: Final = 32.0
"""Roundings of an integrated mass, and the rule's own error, in units of u."""


@dataclass(frozen=True, slots=True, eq=False)
class Masses:
    """Hold masses at 0, 1, 2, .. steps of a grid, as far as it reaches, and what rounding has moved."""

    values: Array
    """Not negative."""
    error: float


def times(one: Masses, other: Masses) -> Masses:
    """Return the masses of a sum of two independent variables, on a grid as long as theirs."""
    n = len(one.values)
    length = 2 * n
    found: Array = irfft(rfft(one.values, length) * rfft(other.values, length), length)[:n]
    a, b = (float(each.values.sum()) for each in (one, other))
    s, t = (float(np.linalg.norm(each.values)) for each in (one, other))
    bits = math.log2(length)
    per_bit = _U + 4 * _U * (math.sqrt(2) + _U) / (1 - 4 * _U)
    of_transform = bits * per_bit / (1 - bits * per_bit)
    off = of_transform * (a * t + b * s) + (of_transform + math.sqrt(5) * _U) * min(a * t, b * s)
    inherited = one.error * b + other.error * a + one.error * other.error
    return Masses(np.maximum(found, 0.0), _SECOND_ORDER * (math.sqrt(n) * off + inherited))


def power(one: Masses, n: int) -> Masses:
    """Return the masses of a sum of n independent variables."""
    total, square = None, one
    while n:
        if n & 1:
            total = square if total is None else times(total, square)
        if n := n >> 1:
            square = times(square, square)
    return nothing(len(one.values)) if total is None else total


def nothing(n: int) -> Masses:
    """Return the masses of 0."""
    values = np.zeros(n)
    values[0] = 1.0
    return Masses(values, 0.0)


def mixed(one: Masses, other: Masses, weight: float) -> Masses:
    """Return the masses of the first with that probability, else of the second."""
    values = weight * one.values + (1 - weight) * other.values
    error = weight * one.error + (1 - weight) * other.error + 4 * _U * float(values.sum())
    return Masses(values, _SECOND_ORDER * error)


def lognormal(step: float, n: int, sigma: float) -> tuple[Masses, Masses]:
    """Return the masses of X = exp(z / sigma - 1 / (2 sigma^2)), z standard normal, and each times its X.

    The grid has n points from 0 on. What is between two of them is split between them, so that mass and mean stay; what
    is above the last is left out.
    """
    grid = step * np.arange(n, dtype=np.float64)
    with np.errstate(divide="ignore"):
        z = np.log(grid) * sigma + 1 / (2 * sigma)
    low, high = z[:-1], z[1:]
    mass, upper = _by_differences(low, high, sigma, step)
    mass_off, upper_off = _of_differences(low, high, sigma, step)
    narrow = np.flatnonzero((high - low < _NARROW) & (low > -_REACH) & (high < _REACH))
    if len(narrow):
        mass[narrow], upper[narrow] = _integrated(low[narrow], narrow, sigma)
        # the density is off by |z| times what z is off
        of_density = 8 * (1 + np.abs(z[narrow])) * _spread(np.abs(z[narrow]), sigma)
        mass_off[narrow] = (_OF_RULE + of_density) * _U * mass[narrow]
        upper_off[narrow] = mass_off[narrow]
    upper = np.clip(upper, 0.0, mass)
    found, moved = np.zeros(len(grid)), np.zeros(len(grid))
    found[:-1], moved[:-1] = mass - upper, mass_off + upper_off + 2 * _U * mass
    found[1:] += upper
    moved[1:] += upper_off + 2 * _U * upper
    weighted = Masses(found * grid, _SECOND_ORDER * float((moved + 4 * _U * found) @ grid))
    return Masses(found, _SECOND_ORDER * float(moved.sum())), weighted


def _integrated(low: Array, index: NDArray[np.int64], sigma: float) -> tuple[Array, Array]:
    """Return the masses of these cells, of which none is the first, and what of them goes to their upper ends."""
    width = sigma * np.log1p(1 / index)
    mass, upper = np.zeros(len(index)), np.zeros(len(index))
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        beyond = width * ((1 + node) / 2)
        density = weight / 2 * width * np.exp(-np.square(low + beyond) / 2) / math.sqrt(2 * math.pi)
        mass += density
        upper += density * (index * np.expm1(beyond / sigma))
    return mass, upper


def _by_differences(low: Array, high: Array, sigma: float, step: float) -> tuple[Array, Array]:
    """Return each cell's mass, and what of it goes to its upper end, by differences of distribution functions."""
    mass, mean = (_between(low - shift, high - shift) for shift in (0.0, 1 / sigma))
    return mass, mean / step - np.arange(len(mass)) * mass


def _between(low: Array, high: Array) -> Array:
    """Return the standard normal mass between each two."""
    right = low > 0
    return np.asarray(np.maximum(np.where(right, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)), 0.0))


def _of_differences(low: Array, high: Array, sigma: float, step: float) -> tuple[Array, Array]:
    """Bound how far each mass, and what of it goes to the upper end, is off."""
    mass, mean = (_of_mass(low - by, high - by, sigma) for by in (0.0, 1 / sigma))
    return mass, mean / step + np.arange(len(mass)) * mass


def _of_mass(low: Array, high: Array, sigma: float) -> Array:
    """Bound how far a difference of distribution functions is off.

    Each is off by at most 8u (2 + |z| (|z| + 1 / sigma + sigma)) of its smaller side, z included. The cell around 0 has
    one that is near 1, and off by u more.
    """
    parts = [np.where((low <= 0) & (high > 0), _U, 0.0)]
    for z in (low, high):
        reach = np.minimum(np.abs(z), _FARTHEST)
        parts.append(8 * (2 + (1 + reach) * _spread(reach, sigma)) * _U * ndtr(-np.abs(z)))
    return np.asarray(np.sum(np.array(parts), axis=0))


def _spread(reach: Array, sigma: float) -> Array:
    """Return what z at so much is off by, in units of u at most, but for a factor below 4.

    It is sigma times a logarithm, plus 1 / (2 sigma). The logarithm is off by u of itself and by u of a point of the
    grid.
    """
    return np.asarray(reach + 1 / sigma + sigma)
