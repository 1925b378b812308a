"""Exact privacy of K units under the sampled Gaussian: what K added clients can do together.

In a round each of the K units is drawn independently with probability q and contributes a vector of norm at most one.
The sum is released with noise N(0, sigma^2 I). Without and with the K units the release is dominated by

    Q = N(0, sigma^2)      and      P = sum_k Bin(K, q)(k) N(k, sigma^2):

the worst case is K times one vector of norm one. For let the drawn set S add v_S. The likelihood ratio is,
with x ~ N(0, sigma^2 I),

    sum_S p_S exp(<v_S, x>/sigma^2 - |v_S|^2/(2 sigma^2)).

This is a sum of exponentials of Gaussians of covariance <v_S, v_S'>/sigma^2 <= |S| |S'|/sigma^2. By Kahane's
inequality the mean of a convex function of such a sum only grows with the covariances. Source: Kahane, "Sur le chaos
multiplicatif", Ann. Sci. Math. Quebec '85. Hockey-stick divergences in both directions are such means. T rounds are
T-fold products, also when each may look at the ones before. Both directions are needed, P from Q
(`attacked_vs_benign`) and Q from P (`benign_vs_attacked`).

Group privacy from one (epsilon, delta) point, `precad.dp.accountants.group_privacy`, pays e^{k epsilon}. Here the same
units are a mixture, most of whose mass sits near qK drawn units. Values are bounds, for K ADDED units;
`precad.dp.certificates.prediction` says how replaced ones are counted.
"""

from __future__ import annotations

import enum
import functools
import math
from typing import Final

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.precad_client import participation_quantile
from precad.dp.accountants.privacy_loss import Array, DeltaCurve, LossDistribution
from precad.dp.accountants.renyi import log_binomial_weights
from precad.dp.checks import integral, require_positive, require_probability


class Direction(enum.StrEnum):
    """Which law is measured from which."""

    ATTACKED_VS_BENIGN = "attacked_vs_benign"
    """P, with the K units, from Q, without: events that the attack makes likelier."""
    BENIGN_VS_ATTACKED = "benign_vs_attacked"
    """Q from P: events that the attack makes rarer."""


LEAST_NOISE: Final = 0.01
"""Multiplier below which a release is taken to show how many were drawn: it errs by e^-1250."""
_N_SIGMAS: Final = 8.5  # of a Gaussian of mass one, under 1e-17 lies beyond
_MOST_POINTS: Final = 1 << 20
_MOST_TERMS: Final = 1 << 22  # of mixtures at several points at a time: tables of 32 MiB
_CURVE_POINTS: Final = 4096
_FINE: Final = 1e-3  # largest grid step for one value
_COARSE: Final = 0.02  # and for the curves of many units
_CUT: Final = 1e-18  # of the binomial law of the number drawn, counted as infinite loss
_MOST_MU: Final = 1e100  # beyond it, nothing is hidden at any epsilon that float64 has the exponential of
_MOST_NOISE: Final = 1e9  # above it, this much is taken to be there: no more than a part of the noise


def delta_if_seen(K: int, q: float, T: int, eps: float, direction: Direction) -> float:
    """Return delta(eps), where each round shows how many of the K units were drawn. An upper bound for any noise.

    With probability w = (1 - q)^(K T) nobody ever is, which looks like a training without them; else P and Q have
    nothing in common.
    """
    log_w = K * T * math.log1p(-q)
    if direction is Direction.ATTACKED_VS_BENIGN:
        return -math.expm1(log_w) + max(0.0, math.exp(log_w) - math.exp(min(eps, 0.0)))
    return -math.expm1(min(eps + log_w, 0.0))


@functools.lru_cache(maxsize=1024)
def delta_curve(K: int, q: float, sigma_bar: float, T: int, direction: Direction) -> DeltaCurve:
    """Return delta at up to 4096 epsilons >= 0, and cached: what certificates are made of."""
    K, T = require_group(K, q, sigma_bar, T)
    if K == 0 or T == 0 or q == 0:
        return DeltaCurve(np.zeros(1), np.zeros(1))
    if q == 1:
        mu = math.sqrt(T) * K / sigma_bar
        if mu > _MOST_MU:
            return DeltaCurve(np.zeros(1), np.ones(1))
        epsilons = np.linspace(0.0, mu * (mu / 2 + 9), _CURVE_POINTS)
        return DeltaCurve(epsilons, np.asarray([delta_from_mu(float(e), mu) for e in epsilons]))
    if sigma_bar < LEAST_NOISE:
        epsilons = np.asarray([0.0, -K * T * math.log1p(-q)])
        return DeltaCurve(epsilons, np.asarray([delta_if_seen(K, q, T, float(e), direction) for e in epsilons]))
    return loss_distribution(K, q, sigma_bar, T, direction, largest_step=_COARSE).curve().thinned(_CURVE_POINTS)


def loss_distribution(
    K: int,
    q: float,
    sigma_bar: float,
    T: int,
    direction: Direction,
    *,
    visible: float = 1.0,
    largest_step: float = _FINE,
) -> LossDistribution:
    """Return the loss of T rounds, 0 < q <= 1.

    With `visible`, a round takes place only with that probability, for all to see.
    """
    if q == 1:  # N(K) from N(0) and N(0) from N(K) are the same pair, mirrored
        direction = Direction.ATTACKED_VS_BENIGN
    one = _one_round(K, float(q), min(float(sigma_bar), _MOST_NOISE), direction, float(visible), T, largest_step)
    return one.composed(T)


@functools.lru_cache(maxsize=64)
def _one_round(
    K: int, q: float, sigma: float, direction: Direction, visible: float, T: int, largest_step: float
) -> LossDistribution:
    """Return one round, on a grid fit for T of them. See `_Mixture.step`."""
    pair = _pair(K, q, sigma)
    low, high = -_N_SIGMAS * sigma, pair.highest_mean(_CUT) + _N_SIGMAS * sigma
    step = max(pair.step(visible * T, largest_step), (pair.loss(high) - pair.loss(low)) / _MOST_POINTS)
    dots = _on_grid(pair, direction, step)
    return dots if visible == 1 else dots.mixed(visible)


def one_round_on_grid(K: int, q: float, sigma: float, direction: Direction, step: float) -> LossDistribution:
    """Return the loss of one round, 0 < q < 1, on a grid that other kinds of rounds are on as well."""
    return _on_grid(_pair(K, q, min(sigma, _MOST_NOISE)), direction, step)


def _pair(K: int, q: float, sigma: float) -> _Mixture:
    log_weights = log_binomial_weights(K, q) if q < 1 else np.asarray([-math.inf] * K + [0.0])
    most = K
    if K > 16 and q < 1:  # the far tail of Bin(K, q) only makes the arrays longer
        most = max(1, participation_quantile(K, q, _CUT))
    return _Mixture(np.asarray(log_weights)[: most + 1], sigma, float(binom.sf(most, K, q)))


def _on_grid(pair: _Mixture, direction: Direction, step: float) -> LossDistribution:
    sigma, log_weights = pair.sigma, pair.log_weights
    low, high = -_N_SIGMAS * sigma, pair.highest_mean(_CUT) + _N_SIGMAS * sigma
    if direction is Direction.ATTACKED_VS_BENIGN:
        lowest, highest = math.floor(pair.loss(low) / step), math.ceil(pair.loss(high) / step)
    else:
        # The loss is the other one's negative; it cannot exceed -ln of the weight of drawing nobody. With much noise it
        # hardly ever comes near: what lies beyond the 8.5th sigma, under 1e-17, counts as infinite.
        lowest = math.floor(-pair.loss(_N_SIGMAS * sigma) / step)
        highest = math.ceil(min(-log_weights[0], -pair.loss(low)) / step)
    return LossDistribution.of_pair(pair, step, lowest, highest, is_reversed=direction is Direction.BENIGN_VS_ATTACKED)


class _Mixture:
    """P = sum_k w_k N(k, sigma^2) beside Q = N(0, sigma^2), and their loss ln dP/dQ, convex and increasing in x.

    The weights may sum to less than one: then P is a part of the true law. What is missing counts as infinite loss
    when P is measured, and a smaller P overstates the loss when Q is.
    """

    def __init__(self, log_weights: Array, sigma: float, cut: float = 0.0) -> None:
        """cut: the mass of the weights that were left out, which may be too small to show in the sum of the others."""
        self.log_weights, self.sigma = log_weights, sigma
        self.k = np.arange(len(log_weights), dtype=np.float64)
        self.missing = max(cut, 1.0 - float(np.exp(log_weights).sum()))

    def highest_mean(self, cut: float) -> float:
        """Return the number of drawn units that is exceeded with probability below `cut`."""
        tail = np.cumsum(np.exp(self.log_weights)[::-1])[::-1]
        return float(np.count_nonzero(tail > cut) - 1)

    def step(self, expected_rounds: float, largest: float) -> float:
        """Return 0.03 of the standard deviation of the loss of one round, under P or Q, and at most `largest`.

        Coarser where so many rounds together would span more than _MOST_POINTS. Rounds in which, visibly, nothing takes
        place lose exactly nothing, and need no finer grid.
        """
        z = np.linspace(-_N_SIGMAS, _N_SIGMAS, 401)
        gaussian = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
        means = self.k[np.exp(self.log_weights) > _CUT]
        loss = np.asarray([self._losses(z * self.sigma + k) for k in means])
        attacked = np.exp(self.log_weights[np.exp(self.log_weights) > _CUT])[:, None] * gaussian
        spread = max(_std(loss[0], gaussian), _std(loss, attacked / attacked.sum()))
        together = spread * math.sqrt(max(expected_rounds, 1.0))
        return max(min(0.03 * spread, largest), 2 * _N_SIGMAS * together / _MOST_POINTS, 1e-9)

    def loss(self, x: float) -> float:
        return float(self._losses(np.asarray([x]))[0])

    def _losses(self, x: Array) -> Array:
        return self._loss_and_slope(x)[0]

    def _loss_and_slope(self, x: Array) -> tuple[Array, Array]:
        """Return ln sum_k w_k e^{(2 k x - k^2)/(2 sigma^2)}, and its derivative E[k | x] / sigma^2."""
        if len(x) > (at_once := max(1, _MOST_TERMS // len(self.k))):
            pieces = [self._loss_and_slope(x[start : start + at_once]) for start in range(0, len(x), at_once)]
            losses, slopes = zip(*pieces, strict=True)
            return np.concatenate(losses), np.concatenate(slopes)
        exponents = self.log_weights[:, None] + self.k[:, None] * (x - self.k[:, None] / 2) / self.sigma**2
        top = exponents.max(axis=0)
        terms = np.exp(exponents - top)
        total = terms.sum(axis=0)
        return top + np.log(total), (self.k @ terms) / total / self.sigma**2

    def inverse(self, losses: Array) -> Array:
        """Return the x of each loss, -inf at and below its infimum ln w_0.

        Newton's method on a convex increasing function, from a table, until nothing moves. P and Q are cut at the same
        x in any case. An x off by 1e-12 puts that much of the mass between neighbouring grid points wrongly.
        """
        low, high = -40 * self.sigma, self.k[-1] + 40 * self.sigma
        table = np.linspace(low, high, 4001)
        is_reached = losses > self.log_weights[0]
        wanted = losses[is_reached]
        x: Array = np.interp(wanted, self._losses(table), table)
        for _ in range(50):
            value, slope = self._loss_and_slope(x)
            with np.errstate(divide="ignore", invalid="ignore"):
                moved = np.clip(np.where(slope > 0, x - (value - wanted) / slope, x), low, high)
            is_settled = bool(np.all(np.abs(moved - x) <= 1e-12 * (1 + np.abs(x))))
            x = moved
            if is_settled:
                break
        cuts = np.full(losses.shape, -np.inf)
        cuts[is_reached] = x
        return cuts

    def benign_between(self, cuts: Array) -> Array:
        """See MonotonePair."""
        return normal_between(cuts / self.sigma)

    def attacked_between(self, cuts: Array) -> Array:
        """See MonotonePair; what P is missing counts as above the last cut."""
        mass = np.zeros(len(cuts) + 1)
        for k, weight in zip(self.k, np.exp(self.log_weights), strict=True):
            mass += weight * normal_between((cuts - k) / self.sigma)
        mass[-1] += self.missing
        return mass


def _std(values: Array, weights: Array) -> float:
    mean = float((weights * values).sum())
    return math.sqrt(float((weights * (values - mean) ** 2).sum()))


def normal_between(z: Array) -> Array:
    """Return the standard normal mass of the intervals that ascending `z` cuts the line into, tails included."""
    edges = np.concatenate([[-np.inf], z, [np.inf]])
    lower, upper = edges[:-1], edges[1:]
    right = lower > 0
    mass: Array = np.where(right, ndtr(-lower) - ndtr(-upper), ndtr(upper) - ndtr(lower))
    return np.maximum(mass, 0.0)


def require_group(K: float, q: float, sigma_bar: float, T: float) -> tuple[int, int]:
    """Return K and T as integers. Raises ValueError for numbers outside their range."""
    K = integral("K", K)
    require_probability("q", q)
    require_positive("sigma_bar", sigma_bar)
    return K, integral("T", T)
