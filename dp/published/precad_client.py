"""PRECAD at client level: what its Theorem 2 says of a loss, beside what is exact for a Gaussian influence.

What is proved is in `precad.dp.certificates.expected_loss`, on the exact curves of K clients.
"""

from scipy.special import ndtr, ndtri

from precad.dp.accountants.gaussian_dp import gdp_clt
from precad.dp.accountants.precad_client import client_noise_multiplier
from precad.dp.certificates.expected_loss import require_loss
from precad.dp.checks import integral, require_non_negative, require_probability


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
    """PRECAD Theorem 2, clipped to [0, B]: the first and third inequality of the module, on the curve of K mu-GDP.

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
