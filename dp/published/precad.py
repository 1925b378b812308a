"""PRECAD's Theorems 1 and 2: their parameters and what they say of a loss, beside what is true of them.

What is proved at record level is in `precad.dp.accountants.pld`: rounds of the Poisson(p_i)-sampled Gaussian, composed
by their loss distributions. The values of Theorem 1 here are limits or the paper's own, so none of them is a bound. The
neighbouring relation is adding or removing one record of client i.
"""

import math

from scipy.special import ndtr, ndtri

from precad.dp.accountants.gaussian_dp import gdp_clt
from precad.dp.accountants.precad_client import client_noise_multiplier
from precad.dp.certificates.expected_loss import require_loss
from precad.dp.checks import integral, require_non_negative, require_positive, require_probability


def gdp_mu_precad_server_corrupt(p_i: float, sigma: float, T_i: float) -> float:
    """Return p_i sqrt(T_i (e^{1/sigma^2} - 1)), PRECAD Theorem 1 case 1: one server corrupted. An approximation."""
    return _clt(p_i, sigma, T_i, rounds_name="T_i")


def gdp_mu_precad_clients_only(q: float, p_i: float, sigma: float, T: float) -> float:
    """Return q p_i sqrt(T (e^{1/(2 sigma^2)} - 1)), PRECAD Theorem 1 case 2 as printed. A published reproduction.

    The value is too small by about 1/sqrt(q). A record enters only together with its client. The client's other
    records can show that the client was selected, and then nothing has been amplified by q.
    """
    require_probability("q", q)
    mu = _clt(p_i, _both_servers(sigma), T)
    return q * mu if q > 0 else 0.0  # mu may be infinite


def gdp_mu_precad_clients_only_corrected(q: float, p_i: float, sigma: float, T: float) -> float:
    """Return p_i sqrt(q T (e^{1/(2 sigma^2)} - 1)): the limit once the selection is treated as visible.

    An approximation.
    """
    require_probability("q", q)
    mu = _clt(p_i, _both_servers(sigma), T)
    return math.sqrt(q) * mu if q > 0 else 0.0


def _clt(p_i: float, sigma: float, rounds: float, rounds_name: str = "T") -> float:
    require_probability("p_i", p_i)
    return gdp_clt(p_i, sigma, integral(rounds_name, rounds))


def _both_servers(sigma: float) -> float:
    """Two independent draws of std sigma * R add to one of std sqrt(2) * sigma * R."""
    require_positive("sigma", sigma)
    return math.sqrt(2) * sigma


def client_level_mu(q: float, T: float, sigma: float, R: float, C: float) -> float:
    """Return q sqrt(T (e^{1/sigma_bar^2} - 1)): the parameter PRECAD's Theorem 2 assumes. An approximation.

    Infinite when it overflows, and then a certificate made of it is vacuous. At the paper's own settings it lies
    between 3.7e3 and 1.9e25.
    """
    require_probability("q", q)
    return gdp_clt(q, client_noise_multiplier(sigma, R, C), T)


def gdp_robust_bounds(L: float, B: float, mu_total: float) -> tuple[float, float]:
    """Return B Phi(Phi^{-1}(L/B) -+ mu): all four inequalities of the module at once, for an exactly mu-GDP influence.

    L = 0 and L = B are fixed points. A bound if mu is exact; infinite mu is vacuous.
    """
    require_loss(L, B)
    require_non_negative("mu_total", mu_total, may_be_infinite=True)
    if L in (0, B) or mu_total == 0:
        return float(L), float(L)
    z = float(ndtri(L / B))
    return float(B * ndtr(z - mu_total)), float(B * ndtr(z + mu_total))


def precad_theorem2_bounds(L: float, B: float, mu: float, K: float) -> tuple[float, float]:
    """Return PRECAD's Theorem 2, clipped to [0, B]: the first and third inequality of the module, on the curve of K
    mu-GDP.

        highest = inf_{eps >= 0} e^eps L + B delta(eps; m),     lowest = sup_{eps >= 0} e^-eps (L - B delta(eps; m))

    at their closed-form optima, m = K mu, z = Phi^{-1}(L/B): eps = max(0, -m^2/2 - m z) and max(0, m^2/2 - m z).
    K clients are added. A published reproduction, since mu comes from a central limit and group privacy does not
    hold for limits; a bound if mu is exact. Infinite mu gives [0, B].
    """
    require_loss(L, B)
    require_non_negative("mu", mu, may_be_infinite=True)
    K = integral("K", K)
    if K == 0 or mu == 0:
        return float(L), float(L)
    m = K * mu
    if L == 0:
        return 0.0, 0.0
    if L == B:
        return float(2 * B * ndtr(-m / 2)), float(B)
    # Where the optimal epsilon is not 0, the two terms add to B Phi(z -+ m).
    z, at_zero = float(ndtri(L / B)), float(B * (2 * ndtr(m / 2) - 1))
    highest = B * ndtr(z + m) if -m / 2 - z > 0 else L + at_zero
    lowest = B * ndtr(z - m) if m / 2 - z > 0 else L - at_zero
    return max(0.0, float(lowest)), min(float(B), float(highest))
