"""Propose-test-release as its paper states it: direct, by the black box, and by Theorem 4.4.

What is used is `precad.dp.accountants.ptr_privacy.subsampled_ptr_rdp_closed`. Source: Wang, Mahloujifar, Wang, Jia,
Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to Private and Robust Machine Learning",
NeurIPS '22, here [R]. The corrections of docs/explanation/privacy.md are applied.

Beside it are the safety margin and the local sensitivity of a trimmed sum, in the reals.
`precad.dp.trimmed.propose_test_release` computes the margin on the grid. The closed form is our derivation.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from precad.dp.accountants.ptr_privacy import ptr_threshold, require_ptr
from precad.dp.accountants.renyi import rdp_laplace
from precad.dp.checks import (
    integral,
    require_delta,
    require_finite,
    require_order,
    require_positive,
    require_probability,
)
from precad.dp.published.gaussian import analytic_gaussian_eps
from precad.dp.published.renyi_amplification import rdp_poisson_blackbox


def tsum_safety_margin(norms: Sequence[float], F: float, tau: float, R: float) -> float:
    """Count the vectors that must change before the local sensitivity of TSum_F can exceed tau: clip(F - #{norm > tau},
    0, F).

    Infinite if tau >= R: no vector is that long. A norm of exactly tau does not count. Has sensitivity one.
    """
    F = _require(norms, F, R)
    require_positive("tau", tau)
    return math.inf if tau >= R else max(0, F - sum(norm > tau for norm in norms))


def tsum_local_sensitivity(norms: Sequence[float], F: float, r: float, R: float) -> float:
    """Return the largest local sensitivity of TSum_F within r changed vectors: x_(m-F+1+r), R if r > F - 1, 0 below
    x_(1)."""
    F = _require(norms, F, R)
    r = integral("r", r)
    if r > F - 1:
        return float(R)
    rank = len(norms) - F + 1 + r
    return float(sorted(norms)[rank - 1]) if rank >= 1 else 0.0


def _require(norms: Sequence[float], F: float, R: float) -> int:
    require_positive("R", R)
    for norm in norms:
        require_finite("norms", norm)
        if not 0 <= norm <= R:
            raise ValueError(f"norms: expected numbers in [0, R] = [0, {R}], found {norm}")
    return integral("F", F)


Array = NDArray[np.float64]


def ptr_direct_dp(b: float, sigma1: float, delta0: float, delta: float) -> float:
    """Return 1/b + eps_G(sigma1, delta - delta0), delta in all.

    Source: [R], Theorem 4.2, with its primitives corrected.
    """
    _require_deltas(b, sigma1, delta0, delta)
    return 1 / b + analytic_gaussian_eps(sigma1, delta - delta0)


def ptr_direct_dp_refined(b: float, sigma1: float, delta0: float, delta: float) -> float:
    """Return max(1/b + eps_G(sigma1, delta), eps_G(sigma1, (delta - delta0)/(1 - delta0))): no test can leak in both
    cases.

    If both margins are 0 the noisy margins have one law, so that only one of 1/b and delta0 is ever paid. Our
    derivation.
    """
    _require_deltas(b, sigma1, delta0, delta)
    test_leaks = 1 / b + analytic_gaussian_eps(sigma1, delta)
    return max(test_leaks, analytic_gaussian_eps(sigma1, (delta - delta0) / (1 - delta0)))


def ptr_rdp(alpha: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """Return the larger of the two cases, sigma2 = tau sigma1. Source: [R], Theorem 4.3.

    max( ln[(1-delta0) e^{(a-1) a/(2 sigma1^2)} + delta0 e^{(a-1) a/(2 sigma2^2)}]/(a-1), a/(2 sigma1^2) + eps_Lap(a) )
    """
    require_order(alpha)
    require_ptr(sigma1, tau, b, delta0)
    exponent = (alpha - 1) * alpha / 2 / sigma1**2
    wrongly_passed = float(logsumexp([math.log1p(-delta0) + exponent, math.log(delta0) + exponent / tau**2]))
    return max(wrongly_passed / (alpha - 1), alpha / 2 / sigma1**2 + rdp_laplace(alpha, b))


def subsampled_ptr_rdp_blackbox(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """Return the Renyi divergence of the Poisson(q)-sampled mechanism, for integer orders.

    It is by the bound for any mechanism, on `ptr_rdp`.
    """
    require_ptr(sigma1, tau, b, delta0)
    return rdp_poisson_blackbox(alpha, q, lambda j: ptr_rdp(j, sigma1, tau, b, delta0))


def ptr_thm44_valid(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> bool:
    """Tell whether [R]'s Theorem 4.4 applies. It does in none of the paper's experiments."""
    return not _violated(alpha, q, sigma1, tau, b, delta0)


def _violated(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> list[str]:
    """Return the conditions of Theorem 4.4 that do not hold, in words with values.

    q' = q/(q + (1-q) e^{-1/b}), L = ln(1 + 1/(q' (alpha-1))).
    """
    require_order(alpha)
    require_probability("q", q)
    require_ptr(sigma1, tau, b, delta0)
    sigma2 = tau * sigma1
    violated = []
    if sigma2 < 4:
        violated.append(f"sigma2 = tau * sigma1: expected at least 4, found {sigma2}")
    if q == 0:
        return violated
    largest_q = math.exp(-1 / b) / (4 + math.exp(-1 / b))
    if q > largest_q:
        violated.append(f"q: expected at most e^(-1/b)/(4 + e^(-1/b)) = {largest_q:.6g}, found {q}")
    if math.exp(-1 / b) == 0:
        return violated
    q_prime = q / (q + (1 - q) * math.exp(-1 / b))
    L = math.log1p(1 / (q_prime * (alpha - 1)))
    first = sigma2**2 * L / 2 - 2 * math.log(sigma2)
    if alpha > first:
        violated.append(f"alpha: expected at most sigma2^2 L/2 - 2 ln sigma2 = {first:.6g}, found {alpha}")
    second = (sigma2**2 * L**2 / 2 - math.log(5) - 2 * math.log(sigma2)) / (
        L + math.log(q_prime * alpha) + 1 / (2 * sigma2**2)
    )
    if alpha > second:
        violated.append(
            "alpha: expected at most (sigma2^2 L^2/2 - ln 5 - 2 ln sigma2)/(L + ln(q' alpha) + 1/(2 sigma2^2)) = "
            f"{second:.6g}, found {alpha}"
        )
    return violated


def subsampled_ptr_rdp_thm44(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """Return [R]'s Theorem 4.4, Poisson(q)-sampled: ln max(B0, B1, B2)/(alpha - 1). A bound inside its region.

        B0 = 1 + 2 q^2 a(a-1) ((1-delta0)/sigma1^2 + delta0/sigma2^2)
        B1 = E0[w^a]     + 2 a(a-1)/sigma1^2 E0[w^a A^2],         w = 1 - q + q r,  A = q r/w,
        B2 = E0[w^{1-a}] + 2 a(a-1)/sigma1^2 E0[w^{1-a} A^2],     r = Lap(s; 1, b)/Lap(s; 0, b), s ~ Lap(0, b)

    With the 1/sigma1^2 that the main text lacks, and the order of the third term repaired
    (docs/explanation/privacy.md).

    Raises: ValueError naming the conditions outside the region, where the formula is not a bound.
    """
    if violated := _violated(alpha, q, sigma1, tau, b, delta0):
        raise ValueError("Theorem 4.4 conditions violated: " + "; ".join(violated))
    if q == 0:
        return 0.0
    sigma2 = tau * sigma1
    log_weight, log_r = _laplace_ratio(b)
    log_w = np.logaddexp(math.log1p(-q), math.log(q) + log_r)
    log_gain = math.log(2 * alpha * (alpha - 1) / sigma1**2) + 2 * (math.log(q) + log_r - log_w)
    log_b0 = math.log1p(2 * q**2 * alpha * (alpha - 1) * ((1 - delta0) / sigma1**2 + delta0 / sigma2**2))
    moments = [
        logsumexp(np.concatenate([log_weight + order * log_w, log_weight + order * log_w + log_gain]))
        for order in (alpha, 1 - alpha)
    ]
    return max(log_b0, *map(float, moments)) / (alpha - 1)


def _laplace_ratio(b: float) -> tuple[Array, Array]:
    """Return (ln weight, ln r) of r = Lap(s; 1, b)/Lap(s; 0, b) under s ~ Lap(0, b): two atoms and a density on (0, 1).

    Atoms 1/2 at e^{-1/b} and e^{-1/b}/2 at e^{1/b}; density e^{-s/b}/(2b), r = e^{(2s-1)/b}. Gauss-Legendre on panels
    shorter than b/4, exact to rounding for orders up to some hundred.
    """
    nodes, weights = np.polynomial.legendre.leggauss(16)
    panels = min(max(8, math.ceil(8 / b)), 4096)
    left = np.arange(panels)[:, None] / panels
    s = (left + (1 + nodes) / 2 / panels).ravel()
    log_density = np.log(np.tile(weights / 2 / panels, panels)) - s / b - math.log(2 * b)
    log_weight = np.concatenate([[math.log(0.5), math.log(0.5) - 1 / b], log_density])
    return log_weight, np.concatenate([[-1 / b, 1 / b], (2 * s - 1) / b])


def _require_deltas(b: float, sigma1: float, delta0: float, delta: float) -> None:
    require_positive("sigma1", sigma1)
    ptr_threshold(b, delta0)
    require_delta(delta)
    if delta0 >= delta:
        raise ValueError(f"delta0: expected a number below delta = {delta}, found {delta0}")
