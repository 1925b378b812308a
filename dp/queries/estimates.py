"""Estimate what a query asked, with error bars, from the noisy sum of the encodings.

The noise of the sum is Gaussian and its size is public, so error bars know it. Over the noise they hold at least at
their level, whatever the records are. They are about the records of the clients whose answers were accepted. They
assume that both servers added their noise, and that clients answered truly, none about more than C records. A client
that lies moves the sum by at most C.

    count, histogram    estimate +- z t / weight, each number by itself
    mean                Fieller's interval of a ratio of two Gaussians: exact, whatever the count is
    variance            Fieller's interval for each mean that the sum does not refuse, all together
    quantile            the bins whose edges no test at the level refuses

Variance. Let n, y and c be the sums of 1, y and y^2 - 1/2, and m and v mean and variance in these units. Without noise
n (1/2 + m^2 - v) is 2 m y - c. So for the true m Fieller's interval of (2 m y - c) / n covers 1/2 + m^2 - v. The true m
is within the interval of the mean but for a small share of the failures. Near it the result moves by the square of an
error of m alone, which is little where records are many. Our derivation.

Rounding. Each number of the sum may be off by r beside its noise. So z becomes z + r / t for one number. For a
combination of k numbers it becomes z + sqrt(k) r / t, by Cauchy and Schwarz. In ranks the errors of bins add up.

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
MOST_LEVEL: Final = 1 - 1e-9
_OF_MEAN: Final = 0.05
"""The share of a variance's failures that are those of the mean's interval."""
_MEANS: Final = 257
"""Means of that interval for which a variance's is found. Between two of them m^2 bends by 2^-16 of the square of the
interval's half-length."""


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
    """Least share of answers whose error bar covers the truth."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far the numbers of a sum may be off beside their noise."""

    cut: float = 0.0
    """The most that a number is off as clients cut their sums to the grid, all of them together."""
    share: float = 0.0
    """By what share of itself a number may be off besides."""

    def of_each(self, sums: Values) -> float:
        """Return the most that any of these numbers is off."""
        return self.cut + self.share * float(np.abs(sums).max(initial=0.0))

    def of_ranks(self, counts: Values) -> float:
        """Return the most that all bins together are off: integers are cut where all of a client's are in one bin."""
        return self.cut + self.share * float(np.abs(counts).sum())


EXACT: Final = Rounding()


def quantile_beside(level: float, rounding: float, *, n_numbers: int = 1) -> float:
    """Return z of an error bar at the level, of a combination of so many numbers.

    rounding: the most that each is off beside its noise, over that noise's standard deviation.
    """
    return NormalDist().inv_cdf((1 + level) / 2) + math.sqrt(n_numbers) * rounding


def answer(
    encoding: Encoding,
    noisy_sum: Values,
    noise_std: float,
    *,
    rounding: Rounding = EXACT,
    share: float = 0.5,
    level: float = LEVEL,
) -> Answer:
    """Return the answer that a sum, (k,), gives, whose coordinates have Gaussian noise of `noise_std`.

    share: which quantile. Raises ValueError.
    """
    require_positive("noise_std", noise_std)
    if noisy_sum.shape != (encoding.dim,):
        raise ValueError(f"noisy_sum: expected shape ({encoding.dim},), found {noisy_sum.shape}")
    if not 0 < level <= MOST_LEVEL or not 0 < share < 1:
        raise ValueError(f"level, share: expected numbers in (0, {MOST_LEVEL}] and (0, 1), found {level} and {share}")
    off = rounding.of_each(noisy_sum) / noise_std
    if encoding.kind.has_bins:
        reach = quantile_beside(level, off) * noise_std
        bins = tuple(Estimate(float(n), float(n) - reach, float(n) + reach) for n in noisy_sum)
        if encoding.kind is Kind.HISTOGRAM:
            return Answer(None, bins, level)
        of_noise = quantile_beside(level, 0.0) * noise_std
        return Answer(_quantile(encoding, noisy_sum, of_noise, rounding.of_ranks(noisy_sum), share), bins, level)
    sums, stds = noisy_sum / encoding.weights, noise_std / encoding.weights
    return Answer(_OF_KIND[encoding.kind](encoding, sums, stds, level, off), level=level)


def _count(_: Encoding, sums: Values, stds: Values, level: float, off: float) -> Estimate:
    n, reach = float(sums[0]), quantile_beside(level, off) * float(stds[0])
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


def _mean(encoding: Encoding, sums: Values, stds: Values, level: float, off: float) -> Estimate:
    """Return the mean of clipped values by Fieller's interval; all of [low, high] where the count may be zero."""
    n, y = (float(found) for found in sums)
    z = quantile_beside(level, off, n_numbers=2)
    if (found := ratio(n, y, *(float(z * std) for std in stds))) is None:
        return Estimate(encoding.middle, encoding.low, encoding.high)
    value, low, high = (encoding.middle + encoding.half_width * number for number in found)
    return Estimate(value, low, high).within(encoding.low, encoding.high)


def _variance(encoding: Encoding, sums: Values, stds: Values, level: float, off: float) -> Estimate:
    """Return the mean squared distance of clipped values from their mean; nothing said where there are too few."""
    n, y, centred = (float(found) for found in sums)
    of_n, of_y, of_centred = (float(found) for found in stds)
    unit = encoding.half_width**2
    of_mean, z = (quantile_beside(1 - share * (1 - level), off, n_numbers=3) for share in (_OF_MEAN, 1 - _OF_MEAN))
    if (found := ratio(n, y, of_mean * of_n, of_mean * of_y)) is None:
        return Estimate(unit / 2, 0.0, unit)
    first, last = (min(max(end, -1.0), 1.0) for end in found[1:])
    bounds = list[float]()
    for m in map(float, np.linspace(first, last, _MEANS)):
        at_m = ratio(n, 2 * m * y - centred, z * of_n, z * math.hypot(2 * m * of_y, of_centred))
        assert at_m is not None  # at a smaller z than the mean's
        bounds += (0.5 + m * m - at_m[1], 0.5 + m * m - at_m[2])
    low, high = min(bounds), max(bounds)
    value = min(max(centred / n + 0.5 - found[0] ** 2, low), high)
    return Estimate(unit * value, unit * low, unit * high).within(0.0, unit)


_OF_KIND: Final[dict[Kind, Callable[[Encoding, Values, Values, float, float], Estimate]]] = {
    Kind.COUNT: _count,
    Kind.MEAN: _mean,
    Kind.VARIANCE: _variance,
}


def _quantile(encoding: Encoding, counts: Values, reach: float, off: float, share: float) -> Estimate:
    """Return the least x that a share of the records does not exceed.

    reach: z times the noise of one bin. off: the most that a rank is off beside its noise.

    The value is the middle of the bin in which the ranks, made ascending, cross zero.
    """
    k = encoding.bins
    edges = encoding.low + 2 * encoding.half_width * np.arange(k + 1) / k
    ranks = np.concatenate([[0.0], np.cumsum(counts)]) - share * float(counts.sum())
    j = np.arange(k + 1)
    reaches = reach * np.sqrt(j * (1 - share) ** 2 + (k - j) * share**2) + off
    may_hold = (ranks[:-1] <= reaches[:-1]) & (ranks[1:] >= -reaches[1:])
    held = np.flatnonzero(may_hold) if may_hold.any() else np.arange(k)
    crossing = int(np.argmax(np.maximum.accumulate(ranks)[1:] >= 0))
    middle = float(edges[crossing] + edges[crossing + 1]) / 2
    low, high = float(edges[held[0]]), float(edges[held[-1] + 1])
    return Estimate(middle, min(low, middle), max(high, middle))
