"""Privacy of propose-test-release on the trimmed sum, sensitivities normalised to one.

The mechanism (`precad.dp.trimmed.propose_test_release`) releases the safety margin with Laplace noise of scale b. If
that exceeds the threshold b ln(1/(2 delta0)), it releases the trimmed sum with noise sigma2 = tau sigma1, else the full
sum with sigma1. Vectors, tau and noise are divided by R. Neighbours differ in one vector. Two cases make up every
statement:

    the margin is 0     the test passes, wrongly, with probability at most delta0
    the margin is not   the proposed sensitivity tau is right, and the test costs what its Laplace noise does

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22, here [R]. The corrections of docs/privacy.md are applied. All
values are bounds. `precad.dp.trimmed.ptr_loss` has a smaller one for many rounds.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from precad.dp.accountants.gaussian_dp import analytic_gaussian_eps
from precad.dp.accountants.renyi import log_binomial_weights, log_expm1, rdp_composed, rdp_laplace
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.accountants.renyi_amplification import rdp_poisson_blackbox
from precad.dp.checks import integral, require_delta, require_order, require_positive, require_probability

Array = NDArray[np.float64]

INTEGER_ORDERS = (*range(2, 65), 80, 96, 128, 160, 192, 256)


def ptr_threshold(b: float, delta0: float) -> float:
    """Return b ln(1/(2 delta0)): Laplace noise of scale b exceeds it with probability delta0."""
    require_positive("b", b)
    _require_delta0(delta0)
    return b * math.log(1 / (2 * delta0))


def ptr_direct_dp(b: float, sigma1: float, delta0: float, delta: float) -> float:
    """1/b + eps_G(sigma1, delta - delta0), delta in all. Source: [R], Theorem 4.2, with its primitives corrected."""
    _require_deltas(b, sigma1, delta0, delta)
    return 1 / b + analytic_gaussian_eps(sigma1, delta - delta0)


def ptr_direct_dp_refined(b: float, sigma1: float, delta0: float, delta: float) -> float:
    """max(1/b + eps_G(sigma1, delta), eps_G(sigma1, (delta - delta0)/(1 - delta0))): no test can leak in both cases.

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


def subsampled_ptr_rdp_closed(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """Return ln max(M1, M2)/(alpha - 1): Poisson(q)-sampled, integer orders, no side conditions. The recommended one.

        M2 = sum_j C(a,j) (1-q)^{a-j} q^j e^{(j-1) eps_Lap(j) + j(j-1)/(2 sigma1^2)}
        M1 = sum_j C(a,j) (1-q)^{a-j} q^j [(1-delta0) e^{j(j-1)/(2 sigma1^2)} + delta0 e^{j(j-1)/(2 sigma2^2)}]

    with exponent 0 for j = 0, 1. Each case is dominated by an explicit pair, whose sampled version has these moments.
    Laplace x Gaussian with unit shifts mirrors onto itself, so the other direction is no worse. Our derivation.
    """
    alpha = integral("alpha", alpha, at_least=2)
    require_probability("q", q)
    require_ptr(sigma1, tau, b, delta0)
    if q == 0:
        return 0.0
    j = np.arange(2, alpha + 1, dtype=np.float64)
    gaussian = j * (j - 1) / 2 / sigma1**2
    laplace = (j - 1) * np.asarray([rdp_laplace(float(order), b) for order in j])
    # the weights sum to one; what each term adds beyond its weight is e^x - 1, without cancellation
    weights = log_binomial_weights(alpha, q)[2:] if q < 1 else np.where(j == alpha, 0.0, -np.inf)
    log_excess_2 = logsumexp(weights + log_expm1(gaussian + laplace))
    passed = np.logaddexp(math.log1p(-delta0) + log_expm1(gaussian), math.log(delta0) + log_expm1(gaussian / tau**2))
    log_excess_1 = logsumexp(weights + passed)
    return float(np.logaddexp(0.0, max(log_excess_1, log_excess_2))) / (alpha - 1)


def subsampled_ptr_rdp_blackbox(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """Poisson(q)-sampled, by the bound for any mechanism on `ptr_rdp`. Integer orders."""
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
        violated.append(f"sigma2 = tau * sigma1 must be >= 4, got {sigma2}")
    if q == 0:
        return violated
    largest_q = math.exp(-1 / b) / (4 + math.exp(-1 / b))
    if q > largest_q:
        violated.append(f"q must be <= e^(-1/b)/(4 + e^(-1/b)) = {largest_q:.6g}, got {q}")
    if math.exp(-1 / b) == 0:
        return violated
    q_prime = q / (q + (1 - q) * math.exp(-1 / b))
    L = math.log1p(1 / (q_prime * (alpha - 1)))
    first = sigma2**2 * L / 2 - 2 * math.log(sigma2)
    if alpha > first:
        violated.append(f"alpha must be <= sigma2^2 L/2 - 2 ln sigma2 = {first:.6g}, got {alpha}")
    second = (sigma2**2 * L**2 / 2 - math.log(5) - 2 * math.log(sigma2)) / (
        L + math.log(q_prime * alpha) + 1 / (2 * sigma2**2)
    )
    if alpha > second:
        violated.append(
            "alpha must be <= (sigma2^2 L^2/2 - ln 5 - 2 ln sigma2)/(L + ln(q' alpha) + 1/(2 sigma2^2)) = "
            f"{second:.6g}, got {alpha}"
        )
    return violated


def subsampled_ptr_rdp_thm44(alpha: float, q: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """[R]'s Theorem 4.4, Poisson(q)-sampled: ln max(B0, B1, B2)/(alpha - 1). A bound inside its region.

        B0 = 1 + 2 q^2 a(a-1) ((1-delta0)/sigma1^2 + delta0/sigma2^2)
        B1 = E0[w^a]     + 2 a(a-1)/sigma1^2 E0[w^a A^2],         w = 1 - q + q r,  A = q r/w,
        B2 = E0[w^{1-a}] + 2 a(a-1)/sigma1^2 E0[w^{1-a} A^2],     r = Lap(s; 1, b)/Lap(s; 0, b), s ~ Lap(0, b)

    With the 1/sigma1^2 that the main text lacks, and the order of the third term repaired (docs/privacy.md).

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


def eps_ptr_rounds(
    q: float,
    sigma1: float,
    tau: float,
    b: float,
    delta0: float,
    T: float,
    delta: float,
    orders: Sequence[float] = INTEGER_ORDERS,
) -> float:
    """Return epsilon of T Poisson(q)-sampled rounds: `subsampled_ptr_rdp_closed`, conversion of Balle et al."""
    T = integral("T", T)
    return eps_from_rdp(
        lambda alpha: rdp_composed(subsampled_ptr_rdp_closed(alpha, q, sigma1, tau, b, delta0), T),
        delta,
        "balle",
        orders,
    )


def _require_delta0(delta0: float) -> None:
    if isinstance(delta0, bool) or not 0 < delta0 < 0.5:
        raise ValueError(f"delta0 must be in (0, 1/2), got {delta0}")


def _require_deltas(b: float, sigma1: float, delta0: float, delta: float) -> None:
    require_positive("sigma1", sigma1)
    require_positive("b", b)
    require_delta(delta)
    _require_delta0(delta0)
    if delta0 >= delta:
        raise ValueError(f"delta0 must be < delta = {delta}, got {delta0}")


def require_ptr(sigma1: float, tau: float, b: float, delta0: float) -> None:
    """sigma1 and b > 0, tau in (0, 1], delta0 in (0, 1/2). Raises: ValueError."""
    require_positive("sigma1", sigma1)
    if isinstance(tau, bool) or not 0 < tau <= 1:
        raise ValueError(f"tau must be in (0, 1], a share of R, got {tau}")
    require_positive("b", b)
    _require_delta0(delta0)
