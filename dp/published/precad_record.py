"""PRECAD at record level: the parameters of its Theorem 1, beside what is true of them.

What is proved is in `precad.dp.accountants.pld`: rounds of the Poisson(p_i)-sampled Gaussian, composed by their loss
distributions. The values here are limits or the paper's own, so none of them is a bound. The neighbouring relation
is adding or removing one record of client i.
"""

import math

from precad.dp.accountants.gaussian_dp import gdp_clt
from precad.dp.checks import integral, require_positive, require_probability


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
    """p_i sqrt(q T (e^{1/(2 sigma^2)} - 1)): the limit once the selection is treated as visible. An approximation."""
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
