"""The Gaussian mechanism as printed: one release, and the trade-off of a test. For comparison alone."""

import math

from scipy.special import ndtr, ndtri

from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.checks import (
    require_delta,
    require_non_negative,
    require_positive,
    require_probability,
)


def analytic_gaussian_eps(sigma: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release, sigma = std / sensitivity. Bound.

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
        raise ValueError(f"sigma must be large enough for the classical epsilon to be <= 1, got {sigma}: {epsilon:.4g}")
    return epsilon


def gdp_tradeoff(a: float, mu: float) -> float:
    """Phi(Phi^{-1}(1 - a) - mu): the least type II error of a test with type I error a. Bound if mu is."""
    require_probability("a", a)
    require_non_negative("mu", mu)
    return float(ndtr(-ndtri(a) - mu))
