"""The Gaussian mechanism as printed: one release, the trade-off of a test, and sampled rounds by one call.

For comparison alone.
"""

import math
from collections.abc import Sequence

from scipy.special import ndtr, ndtri

from precad.dp.accountants import group_mixture
from precad.dp.accountants.gaussian_dp import delta_from_mu, eps_from_mu
from precad.dp.accountants.group_mixture import Direction
from precad.dp.accountants.pld import (
    PldAccountant,
    SampledGaussian,
    TwoStageSampledGaussian,
)
from precad.dp.accountants.renyi import rdp_composed, rdp_sgm_poisson
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.checks import (
    integral,
    require_delta,
    require_finite,
    require_non_negative,
    require_one_of,
    require_positive,
    require_probability,
)


def analytic_gaussian_eps(sigma: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian release, sigma = std / sensitivity. Bound.

    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML '18, Theorem 8.
    """
    require_positive("sigma", sigma)
    return eps_from_mu(delta, 1 / sigma)


def classical_gaussian_eps(sigma: float, delta: float) -> float:
    """Return sqrt(2 ln(1.25/delta)) / sigma. A bound where it is at most 1, and refused elsewhere, where it is false.

    Source: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", Theorem 3.22. PRECAD prints 4/5
    for 5/4, with which sigma = 0.1 would have delta = 0.796 at epsilon = 0.99; the truth is above 0.99999.
    """
    require_positive("sigma", sigma)
    require_delta(delta)
    epsilon = math.sqrt(2 * math.log(1.25 / delta)) / sigma
    if epsilon > 1:
        raise ValueError(f"sigma: expected one whose classical epsilon is at most 1, found {sigma}, with {epsilon:.4g}")
    return epsilon


def gdp_tradeoff(a: float, mu: float) -> float:
    """Phi(Phi^{-1}(1 - a) - mu): the least type II error of a test with type I error a. Bound if mu is."""
    require_probability("a", a)
    require_non_negative("mu", mu)
    return float(ndtr(-ndtri(a) - mu))


def pld_eps_sgm(q: float, sigma: float, T: float, delta: float, visible: float | None = None) -> float:
    """Return epsilon of T rounds of the Poisson(q)-sampled Gaussian by loss distributions, the larger of both
    directions.

    With visible = w, a round takes place only with probability w, and whether it did is known. Bound.
    """
    require_probability("q", q)
    require_positive("sigma", sigma)
    T = integral("T", T)
    require_delta(delta)
    if visible is None:
        return PldAccountant().epsilon(SampledGaussian(q, sigma), T, delta)
    require_probability("visible", visible)
    return PldAccountant().epsilon(TwoStageSampledGaussian(visible, q, sigma), T, delta)


def eps_sgm_rdp(
    q: float,
    sigma: float,
    steps: float,
    delta: float,
    method: str = "balle",
    orders: str | Sequence[float] = "wide",
) -> float:
    """Return epsilon of `steps` rounds of the Poisson(q)-sampled Gaussian. Bound, add/remove."""
    require_probability("q", q)
    require_positive("sigma", sigma)
    steps = integral("steps", steps)
    return eps_from_rdp(lambda alpha: rdp_composed(rdp_sgm_poisson(alpha, q, sigma), steps), delta, method, orders)


def group_mixture_delta(K: float, q: float, sigma_bar: float, T: float, eps: float, direction: str) -> float:
    """Return delta(eps) after T rounds with K units, any real eps. Upper bound, tight to about 1e-3 of its value."""
    K, T = group_mixture.require_group(K, q, sigma_bar, T)
    require_finite("eps", eps)
    require_one_of("direction", direction, tuple(Direction))
    if K == 0 or T == 0 or q == 0:
        return max(0.0, -math.expm1(min(eps, 0.0)))
    if q == 1:
        return delta_from_mu(eps, math.sqrt(T) * K / sigma_bar)
    if sigma_bar < group_mixture.LEAST_NOISE:
        return group_mixture.delta_if_seen(K, q, T, eps, Direction(direction))
    return group_mixture.loss_distribution(K, q, sigma_bar, T, Direction(direction)).delta(eps)
