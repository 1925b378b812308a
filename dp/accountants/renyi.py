"""Renyi divergences of the basic mechanisms, for neighbours that differ in one unit. All values are bounds.

Source: Mironov, "Renyi Differential Privacy", CSF '17, and Mironov, Talwar, Zhang, "Renyi Differential Privacy of the
Sampled Gaussian Mechanism", arXiv 1908.10530, here SGM. Orders alpha > 1, fractional ones included.

Numerics of the sampled Gaussian. With u(x) = e^{(2x-1)/(2 sigma^2)} - 1, whose mean under N(0, sigma^2) is zero,

    A - 1 = E[(1 + q u)^alpha] - 1 = E[g(q u)],     g(y) = (1 + y)^alpha - 1 - alpha y >= 0.

Every term is nonnegative, so nothing cancels, and rho = ln(1 + (A - 1))/(alpha - 1) keeps its relative precision
where A is 1 + 10^-12. Integer orders have a finite sum of such terms. For fractional orders the integrand is analytic
but at distance pi sigma^2 from the real line, and falls off as a Gaussian. The trapezoidal rule with step
min(sigma/8, sigma^2/4) therefore errs by less than e^-70. Source: Trefethen and Weideman, "The Exponentially Convergent
Trapezoidal Rule", SIAM Review '14. The library dp_accounting 0.6.0 is up to 9e-4 too large at fractional orders, and
gives none for some.
"""

import functools
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from precad.dp.checks import (
    integral,
    require_count,
    require_non_negative,
    require_order,
    require_positive,
    require_probability,
)

_N_SIGMAS: Final = 13.0  # the trapezoidal rule goes this far beyond the outermost Gaussian
_WELL_SEPARATED: Final = 0.05  # sigma below which nothing but the Gaussians at 0, 1 and alpha counts
_LEAST_SIGMA, _MOST_SIGMA = 1e-100, 1e100  # beyond: an infinite divergence, and that of no more noise than this
_MOST_POINTS: Final = 1 << 18  # of one integral, and terms of one sum
_MOST_TERMS_OF_GROUPS: Final = 1 << 28
_POINTS_AT_ONCE: Final = 1 << 16
_ERROR_OF_GROUPS: Final = 1e-9


def rdp_gaussian(alpha: float, sigma: float, sensitivity: float = 1.0) -> float:
    """Return alpha s^2 / (2 sigma^2) for a Gaussian release, alpha >= 1. Source: Mironov '17, Proposition 7."""
    if alpha != 1 or isinstance(alpha, bool):
        require_order(alpha)
    require_positive("sigma", sigma)
    require_positive("sensitivity", sensitivity)
    ratio = sensitivity / sigma
    return alpha * (ratio * ratio) / 2  # infinite where ratio**2 would raise


def rdp_laplace(alpha: float, b: float) -> float:
    """Return ln(alpha/(2 alpha - 1) e^{(alpha-1)/b} + (alpha-1)/(2 alpha - 1) e^{-alpha/b}) / (alpha - 1); 1/b at
    infinity.

    For a release with Laplace noise of scale b and sensitivity one. Source: Mironov '17, Proposition 6. The paper on
    propose-test-release prints the first coefficient wrongly in its main text.
    """
    if alpha != math.inf:
        require_order(alpha)
    require_positive("b", b)
    if alpha == math.inf:
        return 1 / b
    high, low = alpha / (2 * alpha - 1), (alpha - 1) / (2 * alpha - 1)
    exponent = (alpha - 1) / b
    if exponent > 30:
        return exponent / (alpha - 1) + math.log(high + low * math.exp(-(2 * alpha - 1) / b)) / (alpha - 1)
    return math.log1p(high * math.expm1(exponent) + low * math.expm1(-alpha / b)) / (alpha - 1)


def rdp_sgm_poisson(alpha: float, q: float, sigma: float) -> float:
    """Return the Renyi divergence of the Poisson(q)-sampled Gaussian.

        ln E_{N(0, sigma^2)}[(1 - q + q e^{(2x-1)/(2 sigma^2)})^alpha] / (alpha - 1)

    Adding and removing: the order of P and Q here is the larger one (SGM). Relative error below 1e-6, see the module.
    Where the rule would take too many steps, sampling is taken to help nobody. That is a bound, since Renyi divergences
    are jointly quasi-convex. Source: van Erven and Harremoes, "Renyi Divergence and Kullback-Leibler Divergence", IEEE
    Transactions on Information Theory '14, Theorem 13.
    """
    require_order(alpha)
    require_probability("q", q)
    require_positive("sigma", sigma)
    if q == 0:
        return 0.0
    if q == 1:
        return rdp_gaussian(alpha, sigma)
    if sigma < _LEAST_SIGMA:
        return math.inf
    return _sampled_gaussian(float(alpha), float(q), min(float(sigma), _MOST_SIGMA))


@functools.lru_cache(maxsize=1 << 16)
def _sampled_gaussian(alpha: float, q: float, sigma: float) -> float:
    is_integral = alpha == int(alpha)
    n_points = alpha if is_integral else sum((high - low) / _step(sigma) for low, high in _windows(alpha, sigma))
    if n_points > _MOST_POINTS:
        return rdp_gaussian(alpha, sigma)
    log_a_minus_1 = _log_excess_sum(int(alpha), q, sigma) if is_integral else _log_excess_integral(alpha, q, sigma)
    return float(np.logaddexp(0.0, log_a_minus_1)) / (alpha - 1)


def _log_excess_sum(alpha: int, q: float, sigma: float) -> float:
    """Return ln(A - 1) = ln sum_{j >= 2} C(alpha, j) (1-q)^{alpha-j} q^j (e^{j(j-1)/(2 sigma^2)} - 1)."""
    j = np.arange(2, alpha + 1)
    return float(logsumexp(log_binomial_weights(alpha, q)[2:] + log_expm1(j * (j - 1) / 2 / sigma**2)))


def log_binomial_weights(n: int, q: float) -> NDArray[np.float64]:
    """Return ln C(n, j) + j ln q + (n - j) ln(1 - q) for j = 0 .. n, 0 < q < 1."""
    j = np.arange(n + 1)
    log_choose = gammaln(n + 1) - gammaln(j + 1) - gammaln(n - j + 1)
    weights: NDArray[np.float64] = log_choose + j * math.log(q) + (n - j) * math.log1p(-q)
    return weights


def log_expm1(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(e^x - 1) for x > 0, and -inf at 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(x > 30, x + np.log1p(-np.exp(-x)), np.log(np.expm1(np.minimum(x, 30.0))))


def _log_excess_integral(alpha: float, q: float, sigma: float) -> float:
    """Return ln E[g(q u)] by the trapezoidal rule, in log space. See the module for g, u and the step."""
    step = _step(sigma)
    log_terms = []
    for low, high in _windows(alpha, sigma):
        x = np.linspace(low, high, math.ceil((high - low) / step) + 1)
        log_weight = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(x[1] - x[0])
        log_terms.append(logsumexp(log_weight + _log_g(alpha, q, (2 * x - 1) / 2 / sigma**2)))
    return float(logsumexp(log_terms))


def _step(sigma: float) -> float:
    """Return the step of the trapezoidal rule, see the module."""
    return min(sigma / 8, sigma**2 / 4)


def _windows(alpha: float, sigma: float) -> list[tuple[float, float]]:
    """Return where the integrand lives: from below 0 to beyond alpha; if sigma is small, around 0, 1 and alpha only.

    A binomial expansion writes it as Gaussians of std sigma around j = 0 .. alpha, of log weight
    ln C(alpha, j) + j ln(q/(1-q)) + j (j-1)/(2 sigma^2). For sigma below 0.05 that is so convex in j that those
    strictly between 1 and alpha are below e^-100 of the others.
    """
    margin = _N_SIGMAS * sigma
    if sigma >= _WELL_SEPARATED:
        return [(-margin, max(alpha, 2.0) + margin)]
    windows: list[tuple[float, float]] = []
    for centre in (0.0, 1.0, alpha):
        low, high = centre - margin, centre + margin
        if windows and low <= windows[-1][1]:
            low = windows.pop()[0]
        windows.append((low, high))
    return windows


def _log_g(alpha: float, q: float, v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln g(q (e^v - 1)), g(y) = (1 + y)^alpha - 1 - alpha y, each size of y by the form that does not cancel."""
    log_1_plus_y = np.logaddexp(math.log1p(-q), math.log(q) + v)
    y = q * np.expm1(np.minimum(v, 700.0))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        series, power = np.zeros_like(y), np.ones_like(y)
        for j in range(2, 12):
            power = power * y if j > 2 else y * y
            series += math.prod((alpha - i) / (i + 1) for i in range(j)) * power
        # (1 + y)((1 + y)^{alpha-1} - 1) - (alpha - 1) y, which has the factor alpha - 1 in both terms
        exact = (1 + y) * np.expm1((alpha - 1) * log_1_plus_y) - (alpha - 1) * y
        small = np.abs(y) * alpha < 0.02
        # beyond e^60 the rest, 1 + alpha y = alpha (1 + y) - (alpha - 1), is its first term
        log_share_left = np.log(-np.expm1(math.log(alpha) - (alpha - 1) * log_1_plus_y))
        moderate = alpha * log_1_plus_y < 60
        return np.where(moderate, np.log(np.where(small, series, exact)), alpha * log_1_plus_y + log_share_left)


def rdp_sgm_group(alpha: float, k: int, p: float, sigma: float) -> float:
    """Return the larger divergence of sum_j Bin(k, p)(j) N(j, sigma^2) and N(0, sigma^2), of each from the other.

    One round for k units, each drawn with rate p: the pair of `precad.dp.accountants.group_mixture`. By the
    trapezoidal rule, as the module has it for one unit, and above the truth by at most 2e-9 of 1 + rho. Where the rule
    would take too many steps, sampling is taken to help nobody: a bound all the same.
    """
    require_order(alpha)
    require_count("k", k, at_least=1)
    require_probability("p", p)
    require_positive("sigma", sigma)
    if p == 0:
        return 0.0
    if p == 1:
        return rdp_gaussian(alpha, sigma, k)
    if k == 1:
        return rdp_sgm_poisson(alpha, p, sigma)
    sigma = min(float(sigma), _MOST_SIGMA)
    step, end = _step(sigma), max(alpha, 2.0) * k + _N_SIGMAS * sigma
    if step <= 0 or 2 * end / step * (k + 1) > _MOST_TERMS_OF_GROUPS:
        return rdp_gaussian(alpha, sigma, k)
    return _group_divergence(float(alpha), k, float(p), sigma, step, end)


@functools.lru_cache(maxsize=1 << 12)
def _group_divergence(alpha: float, k: int, p: float, sigma: float, step: float, end: float) -> float:
    """Integrate in log space over all x where either integrand is: from -alpha k to alpha k, and 13 sigma beyond."""
    log_weights = log_binomial_weights(k, p)
    n_steps = math.ceil(2 * end / step)
    forward = backward = -math.inf
    for first in range(0, n_steps + 1, _POINTS_AT_ONCE):
        x = -end + step * np.arange(first, min(first + _POINTS_AT_ONCE, n_steps + 1))
        log_ratio = np.full_like(x, -math.inf)  # of the mixture to N(0, sigma^2)
        for j, log_weight in enumerate(log_weights):
            np.logaddexp(log_ratio, log_weight + j * (2 * x - j) / 2 / sigma**2, out=log_ratio)
        log_mass = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(step)
        forward = np.logaddexp(forward, logsumexp(log_mass + alpha * log_ratio))
        backward = np.logaddexp(backward, logsumexp(log_mass + (1 - alpha) * log_ratio))
    rho = max(0.0, float(max(forward, backward))) / (alpha - 1)
    return rho + _ERROR_OF_GROUPS * (1 + rho)


def rdp_sgm_two_stage(alpha: float, q: float, p: float, sigma: float) -> float:
    """Return ln(1 - q + q e^{(alpha-1) eps_p(alpha)}) / (alpha - 1): client drawn with q, seen to be; record with p.

    eps_p = rdp_sgm_poisson(alpha, p, sigma). Releasing the selection, which depends on no data, and processing it
    away again only loses privacy. Given the selection, the round is the rate-p mechanism or nothing. Our derivation.
    """
    require_order(alpha)
    require_probability("q", q)
    require_probability("p", p)
    log_a = (alpha - 1) * rdp_sgm_poisson(alpha, p, sigma)
    if q == 0 or log_a == 0:
        return 0.0
    log_excess = math.log(q) + float(log_expm1(np.asarray([log_a]))[0])
    return float(np.logaddexp(0.0, log_excess)) / (alpha - 1)


def rdp_composed(rho: float, rounds: float) -> float:
    """Return T rho: Renyi divergences of independent or adaptive rounds add. Source: Mironov '17, Proposition 1."""
    require_non_negative("rho", rho, may_be_infinite=True)
    T = integral("rounds", rounds)
    return T * rho if T > 0 else 0.0  # rho may be infinite
