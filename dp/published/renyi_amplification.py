"""Renyi amplification by sampling, for mechanisms known by their Renyi divergence alone. Integer orders only.

Bounds for any mechanism, so weaker for the sampled Gaussian than its own divergence in `precad.dp.accountants.renyi`.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from precad.dp.accountants.renyi import log_binomial_weights, log_expm1
from precad.dp.checks import integral, require_positive, require_probability


def rdp_poisson_blackbox(alpha: float, q: float, rdp: Callable[[int], float]) -> float:
    """Poisson(q) sampling of a mechanism with divergence `rdp` at orders 2 .. alpha; never above rdp(alpha).

        ln[ (1-q)^{a-1} (aq-q+1) + C(a,2) q^2 (1-q)^{a-2} e^{eps(2)}
            + 3 sum_{j>=3} C(a,j) (1-q)^{a-j} q^j e^{(j-1) eps(j)} ] / (a-1)

    Source: Zhu and Wang, "Poisson Subsampled Renyi Differential Privacy", ICML '19. Add/remove. The
    binomial weights sum to one and are taken out first, so a value near zero keeps its relative precision.
    """
    alpha = integral("alpha", alpha, at_least=2)
    require_probability("q", q)
    base = rdp(alpha)
    if q in (0, 1):
        return base * q
    j = np.arange(2, alpha + 1)
    exponents = (j - 1) * _base_values(rdp, alpha)
    factors = log_expm1(exponents)
    factors[1:] = np.logaddexp(math.log(3) + factors[1:], math.log(2))  # 3 e^x - 1 = 3 (e^x - 1) + 2
    log_excess = logsumexp(log_binomial_weights(alpha, q)[2:] + factors)
    return min(float(np.logaddexp(0.0, log_excess)) / (alpha - 1), base)


def rdp_wor_wbk(alpha: float, q: float, sigma: float, sensitivity: float = 2.0) -> float:
    """Return the Renyi divergence of the Gaussian on a fixed share q drawn without replacement, replace one.

    It is never above the unsampled value.

        ln[ 1 + q^2 C(a,2) min(4 (e^{eps(2)}-1), 2 e^{eps(2)}) + sum_{j>=3} 2 q^j C(a,j) e^{(j-1) eps(j)} ] / (a-1),
        eps(j) = j s^2 / (2 sigma^2), s the replace-one sensitivity: 2 for a sum clipped at one.

    Source: Wang, Balle, Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant",
    AISTATS '19, Theorem 9, with eps(infinity) infinite.
    """
    alpha = integral("alpha", alpha, at_least=2)
    require_probability("q", q)
    require_positive("sigma", sigma)
    require_positive("sensitivity", sensitivity)
    if q == 0:
        return 0.0

    def eps(j: int) -> float:
        return j * (sensitivity / sigma) ** 2 / 2

    j = np.arange(2, alpha + 1)
    log_factor = math.log(2) + (j - 1) * _base_values(eps, alpha)
    log_factor[0] = min(math.log(4) + float(log_expm1(np.asarray([eps(2)]))[0]), math.log(2) + eps(2))
    log_choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(alpha - j + 1)
    log_excess = logsumexp(j * math.log(q) + log_choose + log_factor)
    return min(float(np.logaddexp(0.0, log_excess)) / (alpha - 1), eps(alpha))


def _base_values(rdp: Callable[[int], float], alpha: int) -> NDArray[np.float64]:
    return np.asarray([rdp(j) for j in range(2, alpha + 1)], dtype=np.float64)
