"""Loss distribution of propose-test-release under Poisson sampling, for many rounds.

Take a round of the mechanism (`precad.dp.trimmed.propose_test_release`, sensitivities normalised to one, sigma2 = tau
sigma1). The inputs are without and with one record that takes part with probability q. The round shows no more than a
draw from Q or from P does:

    Q = mu0,   P = (1 - q) mu0 + q mu1,   mu_i the law of (c, s, g):  c ~ Bernoulli(delta0), s ~ Lap(i, b), and
                                          g ~ N(i, sigma1^2) if c = 0, N(i, sigma2^2) if c = 1.

The release can be made of (c, s, g) without knowing i, in each of the two cases of `precad.dp.accountants.ptr_privacy`.
The proof is in docs/explanation/privacy.md. T adaptive rounds are therefore post-processing of T
independent draws, and the loss of (P, Q) and of (Q, P), composed T times, bounds epsilon. But for c, which delta0
makes rare, nothing is given away. In every round the margin can move by one and the sums as far as their noise was
made for, both together.

With Lambda = ln dmu1/dmu0 the loss is ln(1 - q + q e^Lambda). Lambda is the loss of a Laplace mechanism plus that of a
Gaussian one. By parts, for one sigma,

    mu0(Lambda <= x) = Phi(sigma (x + 1/b) + 1/(2 sigma)) - tilt(x),
    tilt(x) = e^{-(x + 1/b)/2 - 1/(8 sigma^2)} [Phi(sigma (x + 1/b)) - Phi(sigma (x - 1/b))] / 2,

and, as (s, g) -> (1 - s, 1 - g) exchanges mu0 with mu1, mu1(Lambda > x) = mu0(Lambda <= -x). Our derivation.
"""

import functools
import math
from typing import Final

import numpy as np
from scipy.special import log_ndtr, ndtr

from precad.dp.accountants.privacy_loss import ROUNDING_PER_ROUND, Array, LossDistribution
from precad.dp.accountants.ptr_privacy import require_ptr
from precad.dp.accountants.renyi import rdp_laplace
from precad.dp.checks import integral, require_delta, require_probability

_Event = tuple[float, float, float, float, float]  # q, sigma1, sigma2, b, delta0

_LARGEST_LOSS: Final = 64.0  # of one round; any larger counts as infinite, which costs nothing until epsilon is near it
_CUT: Final = 1e-17  # mass of one round beyond the grid, counted as infinite loss or raised to the lowest
_FINE: Final = 1e-3  # largest grid step
_MOST_POINTS: Final = 1 << 20
_SMALLEST: Final = 1e-8  # of sigma and b; below, a release shows everything, and losses are beyond _LARGEST_LOSS anyway
_SMALLEST_RATE, _LARGEST_MULTIPLIER = 1e-7, 1e4  # beyond, both are moved towards more loss, lest the grid vanish
_LOSS_ROUNDING: Final = 1e-9  # epsilon is raised by it for every round: 2^20 masses, each off by less than 1e-15


def pld_eps_ptr(q: float, sigma1: float, tau: float, b: float, delta0: float, T: float, delta: float) -> float:
    """Return epsilon of T Poisson(q)-sampled rounds by loss distributions, the larger of both directions. Bound.

    Infinite where nothing is proved: for delta below what float64 resolves, or below the chance of a loss over 64.
    """
    require_probability("q", q)
    require_ptr(sigma1, tau, b, delta0)
    T = integral("T", T)
    require_delta(delta)
    if T == 0 or q == 0:
        return 0.0
    left = delta - T * ROUNDING_PER_ROUND
    if left <= 0:
        return math.inf
    both = [ptr_loss_distribution(q, sigma1, tau, b, delta0, T, is_reversed=reverse) for reverse in (False, True)]
    return max(loss.epsilon(left) for loss in both) + T * _LOSS_ROUNDING


def ptr_loss_distribution(
    q: float, sigma1: float, tau: float, b: float, delta0: float, T: int, *, is_reversed: bool
) -> LossDistribution:
    """Return the loss of T >= 1 rounds, 0 < q <= 1: of the input with the record from the one without, or reversed."""
    event = _tractable(q, sigma1, tau, b, delta0)
    return _one_round(*event, _grid_step(*event, T), is_reversed).composed(T)


def one_round_on_grid(
    q: float, sigma1: float, tau: float, b: float, delta0: float, step: float, *, is_reversed: bool
) -> LossDistribution:
    """Return the loss of one round, 0 < q <= 1, on a grid of that step: pessimistic, for whoever composes it."""
    return _one_round(*_tractable(q, sigma1, tau, b, delta0), step, is_reversed)


def _tractable(q: float, sigma1: float, tau: float, b: float, delta0: float) -> _Event:
    """Return (q, sigma1, sigma2, b, delta0) of a pair that loses at least as much, or as much below _LARGEST_LOSS.

    A smaller q is a mixture with no loss at all, and more noise is noise added: both are post-processing.
    """
    sigma1 = min(sigma1, _LARGEST_MULTIPLIER)
    return max(q, _SMALLEST_RATE), max(sigma1, _SMALLEST), max(tau * sigma1, _SMALLEST), max(b, _SMALLEST), delta0


def _grid_step(q: float, sigma1: float, sigma2: float, b: float, delta0: float, T: int) -> float:
    """0.03 of the spread of one round's loss, q sqrt(E_Q[(dmu1/dmu0)^2] - 1) at c = 0, and _FINE at most.

    Coarser where one round, or T together, would span more than _MOST_POINTS.
    """
    low, high = _SampledPair(q, sigma1, sigma2, b, delta0).range()
    spread = q * math.sqrt(math.expm1(min(rdp_laplace(2, b) + sigma1**-2, 100.0)))
    together = 17 * min(spread, high - low) * math.sqrt(T)
    return max(min(0.03 * spread, _FINE), max(together, high - low) / _MOST_POINTS, 1e-9)


@functools.lru_cache(maxsize=16)
def _one_round(
    q: float, sigma1: float, sigma2: float, b: float, delta0: float, step: float, is_reversed: bool
) -> LossDistribution:
    """Return one round, of P from Q or reversed."""
    pair = _SampledPair(q, sigma1, sigma2, b, delta0)
    low, high = pair.range()
    low, high = (-high, -low) if is_reversed else (low, high)
    lowest, highest = math.floor(low / step), math.ceil(high / step)
    return LossDistribution.of_pair(pair, step, lowest, highest, is_reversed=is_reversed)


class _SampledPair:
    """P and Q of the module as laws of x = Lambda."""

    def __init__(self, q: float, sigma1: float, sigma2: float, b: float, delta0: float) -> None:
        self.q, self.b = q, b
        self.parts = ((1 - delta0, sigma1), (delta0, sigma2))
        self._log_not_drawn = math.log1p(-q) if q < 1 else -math.inf

    def range(self) -> tuple[float, float]:
        """Return the losses beyond which P, or Q, has mass below _CUT, and none outside +-_LARGEST_LOSS."""
        x = np.linspace(-1.0, 1.0, 4097) * (_LARGEST_LOSS - math.log(self.q))
        losses = np.logaddexp(self._log_not_drawn, math.log(self.q) + x)
        below, _ = self._tails(x)
        is_beyond = below <= _CUT  # of mu0, and by the symmetry of mu1 above -x; elsewhere P and Q have less
        low = float(losses[is_beyond][-1]) if is_beyond.any() else self._log_not_drawn
        high = float(losses[is_beyond[::-1]][0]) if is_beyond.any() else math.inf
        return max(low, -_LARGEST_LOSS), min(high, _LARGEST_LOSS)

    def inverse(self, losses: Array) -> Array:
        """See MonotonePair: ln((e^loss - 1 + q)/q)."""
        x = np.full(losses.shape, -np.inf)
        is_reached = losses > self._log_not_drawn
        wanted = losses[is_reached]
        x[is_reached] = wanted - math.log(self.q) + np.log(-np.expm1(self._log_not_drawn - wanted))
        return x

    def benign_between(self, cuts: Array) -> Array:
        """See MonotonePair."""
        below, above = self._tails(cuts)
        below, above = np.concatenate([[0.0], below, [1.0]]), np.concatenate([[1.0], above, [0.0]])
        is_right = np.concatenate([[False], cuts > 0])  # differences of what is small: digits stay
        return np.maximum(np.where(is_right, above[:-1] - above[1:], below[1:] - below[:-1]), 0.0)

    def attacked_between(self, cuts: Array) -> Array:
        """See MonotonePair."""
        drawn = self.benign_between(-cuts[::-1])[::-1]
        return (1 - self.q) * self.benign_between(cuts) + self.q * drawn

    def _tails(self, x: Array) -> tuple[Array, Array]:
        """mu0(Lambda <= x) and mu0(Lambda > x), (n,) each; no digits cancel, as tilt is at most half of either."""
        below, above = np.zeros(x.shape), np.zeros(x.shape)
        for weight, sigma in self.parts:
            upper, lower = sigma * (x + 1 / self.b), sigma * (x - 1 / self.b)
            is_right = x > 0
            far, near = np.where(is_right, -upper, lower), np.where(is_right, -lower, upper)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_between = log_ndtr(near) + np.log(-np.expm1(log_ndtr(far) - log_ndtr(near)))
                tilt = np.exp(log_between - (x + 1 / self.b) / 2 - sigma**-2 / 8) / 2
            tilt = np.where(np.isfinite(x), tilt, 0.0)
            below += weight * (ndtr(upper + 1 / (2 * sigma)) - tilt)
            above += weight * (ndtr(-upper - 1 / (2 * sigma)) + tilt)
        return below, above
