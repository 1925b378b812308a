"""Bound what a client's epochs cost a record that each epoch puts into exactly one participation: balls in bins.

In T successive participations of its client a record is in exactly one, drawn uniformly, by itself, and unknown to the
adversary. Let z_t be the release of participation t in the direction of the record's gradient, in units of the clip.
The worst pair of an epoch is

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

Rounding to float64 is bounded beside every result: `masses` carries how far masses are off, all together. A delta is a
mean, over the law that counts, of numbers in [0, 1]. So it is off by no more, and that is taken out of delta. The other
law of the pair follows from dP/dQ, which every point of the grid has exactly.

Poisson sampling at rate 1/T does not dominate this. Without noise a record is in some participation for certain.
Poisson's law misses it with probability (1 - 1/T)^T, so at epsilon = 0 the larger delta is here
(tests/dp/accountants/test_balls_in_bins.py).

Rounds that are lost. By what was released before, an adversary chooses which participations are released at all, and
what the record's gradient is in each. Release t is g_t z_t and noise in all other directions, of a
g_t that is a function of earlier releases. So it is made from z_t, earlier releases and fresh noise. One that is left
out is a z_t that nobody looks at. So the whole view is post-processing of z_1, .., z_T by one map for P and Q. A whole
epoch's figure bounds each subset, chosen adaptively. Epochs whose bins are drawn independently compose adaptively.

It follows that an epoch must be charged whole, at its first release. A count of releases holds only where it is fixed
beforehand, in each epoch. Servers that lose rounds at will could else release one participation of each epoch, which
costs what Poisson sampling does. A figure here counts participations that a client drew a partition for, in order,
released or not. Ledgers hold them as whole epochs, by the numbers of rounds (`precad.dp.accountants.bins_event`).

Bins are drawn by themselves for each record, of two equal records too. One bin for all records of the same content
would be known from a copy, and hide nothing.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from precad.dp.accountants.gaussian import gaussian_epsilon
from precad.dp.accountants.masses import Masses, lognormal, mixed, power, times
from precad.dp.accountants.privacy_loss import ROUNDING_PER_ROUND, Array, LossDistribution
from precad.dp.checks import keep_as_floats, require_bins, require_count, require_delta, require_positive

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

_POINTS: Final = 1 << 17
_AFTERWARDS: Final = (_POINTS + 100) * 2.0**-53
"""Bound on what rounding does to a delta of an epoch once masses are summed. Each goes through fewer than 100
operations, and at most so many additions into one place of the grid of losses. Split between two places, it is off by
an operation over the step between these; a delta feels that times the step."""
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
        require_bins(self.bins)
        require_positive("noise_multiplier", self.noise_multiplier)
        keep_as_floats(self, "noise_multiplier")

    def epsilon(self, participations: int, delta: float) -> float:
        """Bound epsilon of a record whose client took part so many times, the last epoch perhaps in part.

        Add/remove one record. Never above the figure of a record that is in one participation of each epoch, known to
        everybody.
        """
        require_count("participations", participations)
        require_delta(delta)
        if participations == 0:
            return 0.0
        n_epochs = -(-participations // self.bins)
        known = gaussian_epsilon(self.noise_multiplier / math.sqrt(n_epochs), delta)
        if self.bins == 1 or self.noise_multiplier < _LEAST_NOISE:
            return known
        found = _composed(self.bins, min(self.noise_multiplier, _MOST_NOISE), participations)
        left = delta - found.rounding
        return min(known, float(found.losses.get_epsilon_for_delta(left))) if left > 0 else known


@dataclass(frozen=True, slots=True)
class _Epochs:
    """Losses of epochs, for adding and for removing the record."""

    losses: privacy_loss_distribution.PrivacyLossDistribution
    rounding: float
    """Bound on what rounding takes from a delta of them."""


@functools.lru_cache(maxsize=16)
def _composed(bins: int, sigma: float, participations: int) -> _Epochs:
    """Compose the losses of all epochs."""
    whole, rest = divmod(participations, bins)
    parts = [_epoch(bins, sigma, bins)] if whole else []
    losses = [one.losses.self_compose(whole) for one in parts]
    rounding = sum(whole * one.rounding for one in parts)
    if rest:
        last = _epoch(bins, sigma, rest)
        losses, rounding = [*losses, last.losses], rounding + last.rounding
    n_epochs = whole + bool(rest)
    composing = n_epochs * ROUNDING_PER_ROUND if n_epochs > 1 else 0.0
    return _Epochs(functools.reduce(lambda one, other: one.compose(other), losses), 1.001 * rounding + composing)


@functools.lru_cache(maxsize=16)
def _epoch(bins: int, sigma: float, shown: int) -> _Epochs:
    """Return the loss of an epoch of which the first `shown` participations are released."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    step = max(min(0.03 * math.sqrt(math.expm1(sigma**-2) / bins), _FINE), 1e-7)
    spread = math.sqrt(math.expm1(sigma**-2) * shown)
    top = shown + math.exp(_BEYOND / sigma + sigma**-2 / 2) + 10 * min(spread, float(shown))

    def pmf(losses: Array, p: Array, q: Array, *, is_rest_lost: bool) -> pld_pmf.DensePLDPmf:
        found = _on_grid(losses, p, q, step, is_rest_lost=is_rest_lost)
        return pld_pmf.DensePLDPmf(step, found.lowest, found.mass, found.infinite, True)

    ratios, with_record, _ = _pair(bins, sigma, shown, top)
    p, without = with_record.values, np.zeros(len(ratios))
    np.divide(p, ratios, out=without, where=ratios > 0)
    with np.errstate(divide="ignore"):
        removed = pmf(np.log(ratios), np.where(ratios > 0, p, 0.0), without, is_rest_lost=True)
        ratios, _, alone = _pair(bins, sigma, shown, min(top, _LOW * bins))
        losses = -np.log(ratios)[::-1]
    added = pmf(losses, alone.values[::-1], (alone.values * ratios)[::-1], is_rest_lost=False)
    rounding = max(with_record.error, alone.error) + _AFTERWARDS
    return _Epochs(privacy_loss_distribution.PrivacyLossDistribution(removed, added), rounding)


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


def _pair(bins: int, sigma: float, shown: int, top: float) -> tuple[Array, Masses, Masses]:
    """Return dP/dQ, ascending, and the masses that P and Q have there, of sums of the X below `top`."""
    step = top / _POINTS
    one, weighted = lognormal(step, _POINTS, sigma)
    others = power(one, shown - 1)
    without = times(others, one)
    with_record = mixed(times(others, weighted), without, shown / bins)
    return (bins - shown + step * np.arange(_POINTS, dtype=np.float64)) / bins, with_record, without
