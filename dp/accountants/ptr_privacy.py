"""Privacy of propose-test-release on the trimmed sum, sensitivities normalised to one.

The mechanism (`precad.dp.trimmed.propose_test_release`) releases the safety margin with Laplace noise of scale b. If
that exceeds the threshold b ln(1/(2 delta0)), it releases the trimmed sum with noise sigma2 = tau sigma1, else the full
sum with sigma1. Vectors, tau and noise are divided by R. Neighbours differ in one vector. Two cases make up every
statement:

    the margin is 0     the test passes, wrongly, with probability at most delta0
    the margin is not   the proposed sensitivity tau is right, and the test costs what its Laplace noise does

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22, here [R]. The corrections of docs/explanation/privacy.md are applied.
All values are bounds. `precad.dp.accountants.ptr_loss` has a smaller one for many rounds.
"""

import functools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.special import logsumexp

from precad.dp.accountants.renyi import log_binomial_weights, log_expm1, rdp_composed, rdp_laplace
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.checks import integral, require_positive, require_probability

_FARTHEST: Final = 1e100
"""Noise, or one over it, has no square in float64 beyond."""
INTEGER_ORDERS = (*range(2, 65), 80, 96, 128, 160, 192, 256)


def ptr_threshold(b: float, delta0: float) -> float:
    """Return b ln(1/(2 delta0)): Laplace noise of scale b exceeds it with probability delta0."""
    require_positive("b", b)
    _require_delta0(delta0)
    return b * math.log(1 / (2 * delta0))


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
    sigma1, b = min(float(sigma1), _FARTHEST), min(float(b), _FARTHEST)  # less noise bounds what more does
    if min(tau * sigma1, b) < 1 / _FARTHEST:
        return math.inf
    return _closed(alpha, float(q), sigma1, float(tau), b, float(delta0))


@functools.lru_cache(maxsize=1 << 12)
def _closed(alpha: int, q: float, sigma1: float, tau: float, b: float, delta0: float) -> float:
    """Return `subsampled_ptr_rdp_closed`, q > 0: a search for the most rounds asks for the same orders each time."""
    j = np.arange(2, alpha + 1, dtype=np.float64)
    gaussian = j * (j - 1) / 2 / sigma1**2
    laplace = (j - 1) * np.asarray([rdp_laplace(float(order), b) for order in j])
    # the weights sum to one; what each term adds beyond its weight is e^x - 1, without cancellation
    weights = log_binomial_weights(alpha, q)[2:] if q < 1 else np.where(j == alpha, 0.0, -np.inf)
    log_excess_2 = logsumexp(weights + log_expm1(gaussian + laplace))
    passed = np.logaddexp(math.log1p(-delta0) + log_expm1(gaussian), math.log(delta0) + log_expm1(gaussian / tau**2))
    log_excess_1 = logsumexp(weights + passed)
    return float(np.logaddexp(0.0, max(log_excess_1, log_excess_2))) / (alpha - 1)


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
        raise ValueError(f"delta0: expected a number in (0, 1/2), found {delta0}")


def require_ptr(sigma1: float, tau: float, b: float, delta0: float) -> None:
    """Require sigma1 and b > 0, tau in (0, 1], delta0 in (0, 1/2). Raises: ValueError."""
    require_positive("sigma1", sigma1)
    if isinstance(tau, bool) or not 0 < tau <= 1:
        raise ValueError(f"tau: expected a number in (0, 1], a share of R, found {tau}")
    require_positive("b", b)
    _require_delta0(delta0)
