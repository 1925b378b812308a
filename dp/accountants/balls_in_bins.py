"""Bound what a client's epochs cost a record that each epoch puts into exactly one participation: balls in bins.

In T successive participations of its client a record is in exactly one, drawn uniformly, by itself, and unknown to the
adversary. With z_t the release of participation t in the direction of the record's gradient, in units of the clip, the
worst pair of an epoch is

    Q = N(0, sigma^2 I_T)  without the record,   P = (1/T) sum_t N(e_t, sigma^2 I_T)  with it.

Whatever is released, adaptively, is post-processing of z: the adversary's own noise fills up shorter gradients and all
other directions. Source: Chua et al., "Balls-and-Bins Sampling for DP-SGD", arXiv 2412.16802; Feldman and Shenfeld,
"Privacy Amplification by Random Allocation", arXiv 2502.08202. Where only s of the T releases are shown, the others
are not: P is then N(0, sigma^2 I_s) with probability 1 - s/T. With X_t = exp(z_t / sigma^2 - 1 / (2 sigma^2)),

    dP/dQ = (T - s + X_1 + .. + X_s) / T,

a sum of independent lognormal variables of mean one. Monte Carlo is not needed. Each X is moved to a grid so that both
neighbours keep its mass and its mean. The law on the grid is then larger in the convex order, and so are sums of it.
Hockey-stick divergences in both directions are means of convex functions of dP/dQ, so they only grow: the figure is
proved. Our derivation. Mass above the grid counts as infinite loss.

Poisson sampling at rate 1/T does not dominate this. Without noise a record is in some participation for certain, where
Poisson's law misses it with probability (1 - 1/T)^T: at epsilon = 0 the larger delta is here
(tests/dp/accountants/test_balls_in_bins.py).

No ledger holds such rounds. A figure counts the participations that a client drew a partition for, in order, whether
they were released or not. Servers that lose rounds at will could else release one participation of each epoch, which
costs what Poisson sampling does.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.fft import irfft, rfft

from precad.dp.accountants.group_mixture import normal_between
from precad.dp.accountants.pld import gaussian_epsilon
from precad.dp.accountants.privacy_loss import Array, LossDistribution
from precad.dp.checks import require_count, require_delta, require_positive

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

MOST_BINS: Final = 10_000
"""Participations of an epoch, at most: beyond, the grid of their sum is too coarse to say anything."""
_POINTS: Final = 1 << 17
_ROUNDING_PER_BIN: Final = 2e-12
"""Added to delta for every participation. A product of two transforms of N = 2^18 points, of masses below one, errs in
all of its N / 2 entries together by less than 2 * 18 * 2^-53 * sqrt(N / 2)."""
_FINE: Final = 1e-3  # largest step of the losses
_BEYOND: Final = 6.0  # standard deviations of the largest single release that the grid covers: 1e-9 lies beyond
_LOW: Final = 16.0  # where the grid for adding a record ends, over T: all losses above -ln 16 are on it
_NO_MASS: Final = 1e-17
_LEAST_NOISE: Final = 0.25  # multiplier below which the partition is taken to hide nothing
_MOST_NOISE: Final = 1e3  # above it, this much is taken to be there


@dataclass(frozen=True, kw_only=True, slots=True)
class BallsInBins:
    """Epochs of so many participations each, in exactly one of which the record is. Noise as in `SampledGaussian`."""

    bins: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        require_count("bins", self.bins, at_least=1)
        if self.bins > MOST_BINS:
            raise ValueError(f"bins must be <= {MOST_BINS}, got {self.bins}")
        require_positive("noise_multiplier", self.noise_multiplier)

    def epsilon(self, participations: int, delta: float) -> float:
        """Upper bound on epsilon of a record whose client took part so many times, the last epoch perhaps in part.

        Add/remove one record. Never above the figure of a record that is in one participation of each epoch, known to
        everybody.
        """
        require_count("participations", participations)
        require_delta(delta)
        if participations == 0:
            return 0.0
        n_epochs = -(-participations // self.bins)
        known = gaussian_epsilon(self.noise_multiplier / math.sqrt(n_epochs), delta)
        left = delta - _ROUNDING_PER_BIN * participations
        if self.bins == 1 or self.noise_multiplier < _LEAST_NOISE or left <= 0:
            return known
        found = _composed(self.bins, min(self.noise_multiplier, _MOST_NOISE), participations)
        return min(known, float(found.get_epsilon_for_delta(left)))


@functools.lru_cache(maxsize=16)
def _composed(bins: int, sigma: float, participations: int) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Compose the losses of all epochs, for adding and for removing the record."""
    whole, rest = divmod(participations, bins)
    parts = [_epoch(bins, sigma, bins).self_compose(whole)] if whole else []
    parts += [_epoch(bins, sigma, rest)] if rest else []
    return functools.reduce(lambda one, other: one.compose(other), parts)


@functools.lru_cache(maxsize=16)
def _epoch(bins: int, sigma: float, shown: int) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return the loss of an epoch of which the first `shown` participations are released."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    step = max(min(0.03 * math.sqrt(math.expm1(sigma**-2) / bins), _FINE), 1e-7)
    spread = math.sqrt(math.expm1(sigma**-2) * shown)
    top = shown + math.exp(_BEYOND / sigma + sigma**-2 / 2) + 10 * min(spread, float(shown))

    def pmf(losses: Array, p: Array, q: Array, *, is_rest_lost: bool) -> pld_pmf.PLDPmf:
        found = _on_grid(losses, p, q, step, is_rest_lost=is_rest_lost)
        return pld_pmf.DensePLDPmf(step, found.lowest, found.mass, found.infinite, True)

    removed = pmf(*_pair(bins, sigma, shown, top), is_rest_lost=True)
    losses, with_record, without = _pair(bins, sigma, shown, min(top, _LOW * bins))
    added = pmf(-losses[::-1], without[::-1], with_record[::-1], is_rest_lost=False)
    return privacy_loss_distribution.PrivacyLossDistribution(removed, added)


def _on_grid(losses: Array, p: Array, q: Array, step: float, *, is_rest_lost: bool) -> LossDistribution:
    """Return the loss of P from Q, whose masses are at ascending losses.

    is_rest_lost: whether what P has elsewhere is above them, and counts as infinite loss; else it is below.
    """
    first = int(np.searchsorted(np.cumsum(p), _NO_MASS))
    lowest = math.floor(losses[first] / step)
    last = int(np.flatnonzero((p > _NO_MASS) & np.isfinite(losses))[-1])
    n = math.floor(losses[last] / step) - lowest + 2
    places = np.clip(np.floor(losses / step) - lowest, -1, n - 1).astype(np.int64) + 1
    of_p, of_q = (np.bincount(places, mass, n + 1).astype(np.float64) for mass in (p, q))
    of_p[-1 if is_rest_lost else 0] += max(0.0, 1.0 - float(p.sum()))
    return LossDistribution.connect_dots(step, lowest, of_p[1:], of_q[1:], float(of_p[0]))


def _pair(bins: int, sigma: float, shown: int, top: float) -> tuple[Array, Array, Array]:
    """Return ln dP/dQ, ascending, and the masses that P and Q have there, of sums of the X below `top`."""
    grid: Array = top / _POINTS * np.arange(_POINTS, dtype=np.float64)
    one = _lognormal(grid, sigma)
    others = _sum_of(one, shown - 1)
    without = _times(others, one)
    in_these = _times(others, one * grid)
    with_record = shown / bins * in_these + (1 - shown / bins) * without
    with np.errstate(divide="ignore"):
        return np.log((bins - shown + grid) / bins), with_record, without


def _lognormal(grid: Array, sigma: float) -> Array:
    """Return the masses of exp(z / sigma - 1 / (2 sigma^2)), z standard normal, each split between its neighbours.

    Mass and mean between any two points of the grid stay as they are; what is above the last is left out.
    """
    with np.errstate(divide="ignore"):
        z = np.log(grid) * sigma + 1 / (2 * sigma)
    mass, mean = normal_between(z)[1:-1], normal_between(z - 1 / sigma)[1:-1]
    upper = np.clip((mean - grid[:-1] * mass) / grid[1], 0.0, mass)
    found = np.zeros(len(grid))
    found[:-1] = mass - upper
    found[1:] += upper
    return found


def _sum_of(one: Array, n: int) -> Array:
    """Return the masses of a sum of n such variables, as far as the grid reaches."""
    total = np.zeros(len(one))
    total[0] = 1.0
    power = one
    while n:
        if n & 1:
            total = _times(total, power)
        if n := n >> 1:
            power = _times(power, power)
    return total


def _times(one: Array, other: Array) -> Array:
    """Return the masses of a sum of two independent variables, as far as the grid reaches."""
    length = 2 * len(one)
    found: Array = irfft(rfft(one, length) * rfft(other, length), length)[: len(one)]
    return np.maximum(found, 0.0)
