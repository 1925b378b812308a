"""Estimate what a query asked, with error bars, from the noisy sum of the encodings.

The noise of the sum is Gaussian and its size is public, so error bars know it. They hold at their level over the noise,
for whatever the records are, and for the records of the clients whose answers were accepted. They assume that both
servers added their noise, and that clients answered truly. A client that lies moves the sum by at most C.

    count, histogram    estimate +- z t / weight, each number by itself
    mean                Fieller's interval of a ratio of two Gaussians: exact, whatever the count is
    variance            the delta method around the estimate: to first order in t / n
    quantile            the bins whose edges no test at the level refuses: at least the level

Source: Fieller, "Some Problems in Interval Estimation", JRSS B '54. The quantile's tests are of ranks, r_j = (sum of
the first j bins) - share * (sum of all). Their noise has variance t^2 (j (1 - share)^2 + (k - j) share^2). The bin of
the quantile has r at its lower edge below 0, and at its upper edge at or above. Each is refused with half of 1 - level.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from precad.dp.checks import require_positive
from precad.dp.queries.encodings import Encoding, Values
from precad.dp.queries.kinds import Kind

LEVEL: Final = 0.95
_LEAST_COUNTS: Final = 4.0
"""A variance has error bars from a noisy count of so many standard deviations on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its error bar, in units of the column or of records."""

    value: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Estimate:
        """Return it cut to what the number can be at all."""
        value, low, high = (min(max(found, least), most) for found in (self.value, self.low, self.high))
        return Estimate(value, low, high)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query."""

    estimate: Estimate | None
    """The number that was asked for. A histogram has none."""
    bins: tuple[Estimate, ...] = ()
    """Records in each bin, of a histogram or a quantile."""
    level: float = LEVEL
    """Share of answers whose error bar covers the truth."""


def answer(
    encoding: Encoding, noisy_sum: Values, noise_std: float, *, share: float = 0.5, level: float = LEVEL
) -> Answer:
    """Return the answer that a sum, (k,), gives, whose coordinates have Gaussian noise of `noise_std`.

    share: which quantile. Raises ValueError.
    """
    require_positive("noise_std", noise_std)
    if noisy_sum.shape != (encoding.dim,):
        raise ValueError(f"noisy_sum: expected shape ({encoding.dim},), got {noisy_sum.shape}")
    if not 0 < level < 1 or not 0 < share < 1:
        raise ValueError(f"level, share: expected numbers between 0 and 1, got {level} and {share}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    if encoding.kind.has_bins:
        bins = tuple(Estimate(float(n), float(n) - z * noise_std, float(n) + z * noise_std) for n in noisy_sum)
        found = None if encoding.kind is Kind.HISTOGRAM else _quantile(encoding, noisy_sum, noise_std * z, share)
        return Answer(found, bins, level)
    sums, stds = noisy_sum / encoding.weights, noise_std / encoding.weights
    return Answer(_OF_KIND[encoding.kind](encoding, sums, stds, z), level=level)


def _count(_: Encoding, sums: Values, stds: Values, z: float) -> Estimate:
    n, reach = float(sums[0]), z * float(stds[0])
    return Estimate(n, n - reach, n + reach)


def ratio(n: float, y: float, reach_n: float, reach_y: float) -> tuple[float, float, float] | None:
    """Return y / n with Fieller's interval, of two Gaussians with independent noise; None where n may be zero.

    reach_n, reach_y: z times the noise of each, at the quantile z of the interval's level.
    """
    of_n, of_y = reach_n**2, reach_y**2
    lead = n * n - of_n
    if n <= 0 or lead <= 0:
        return None
    root = math.sqrt(max(of_y * n * n + of_n * y * y - of_n * of_y, 0.0))
    return y / n, (y * n - root) / lead, (y * n + root) / lead


def _mean(encoding: Encoding, sums: Values, stds: Values, z: float) -> Estimate:
    """Return the mean of clipped values by Fieller's interval; all of [low, high] where the count may be zero."""
    n, y = (float(found) for found in sums)
    if (found := ratio(n, y, *(float(z * std) for std in stds))) is None:
        return Estimate(encoding.middle, encoding.low, encoding.high)
    value, low, high = (encoding.middle + encoding.half_width * number for number in found)
    return Estimate(value, low, high).within(encoding.low, encoding.high)


def _variance(encoding: Encoding, sums: Values, stds: Values, z: float) -> Estimate:
    """Return the mean squared distance of clipped values from their mean; nothing said where there are too few."""
    n, y, centred = (float(found) for found in sums)
    unit = encoding.half_width**2
    if n < _LEAST_COUNTS * float(stds[0]):
        return Estimate(unit / 2, 0.0, unit)
    mean, square = y / n, centred / n
    slopes = np.asarray([2 * mean * mean - square, -2 * mean, 1.0]) / n
    value, reach = square + 0.5 - mean * mean, z * float(np.linalg.norm(slopes * stds))
    return Estimate(unit * value, unit * (value - reach), unit * (value + reach)).within(0.0, unit)


_OF_KIND: Final[dict[Kind, Callable[[Encoding, Values, Values, float], Estimate]]] = {
    Kind.COUNT: _count,
    Kind.MEAN: _mean,
    Kind.VARIANCE: _variance,
}


def _quantile(encoding: Encoding, counts: Values, reach: float, share: float) -> Estimate:
    """Return the least x that a share of the records does not exceed. reach: z times the noise of one bin.

    The value is the middle of the bin in which the ranks, made ascending, cross zero.
    """
    k = encoding.bins
    edges = encoding.low + 2 * encoding.half_width * np.arange(k + 1) / k
    ranks = np.concatenate([[0.0], np.cumsum(counts)]) - share * float(counts.sum())
    j = np.arange(k + 1)
    reaches = reach * np.sqrt(j * (1 - share) ** 2 + (k - j) * share**2)
    may_hold = (ranks[:-1] <= reaches[:-1]) & (ranks[1:] >= -reaches[1:])
    held = np.flatnonzero(may_hold) if may_hold.any() else np.arange(k)
    crossing = int(np.argmax(np.maximum.accumulate(ranks)[1:] >= 0))
    middle = float(edges[crossing] + edges[crossing + 1]) / 2
    low, high = float(edges[held[0]]), float(edges[held[-1] + 1])
    return Estimate(middle, min(low, middle), max(high, middle))
