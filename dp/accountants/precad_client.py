"""PRECAD at client level: the noise one client's whole update sees.

The neighbouring relation is adding or removing one client. The exact accounting of K of them is in
`precad.dp.accountants.group_mixture`, what it says about losses in `precad.dp.certificates.expected_loss`.
"""

import math

from precad.dp.accountants.gaussian_dp import gdp_clt
from precad.dp.checks import require_positive, require_probability


def client_noise_multiplier(sigma: float, R: float, C: float) -> float:
    """Return sigma_bar = sqrt(2) sigma R / C: both servers' noise over the clip C of one client's update.

    If one server leaves its noise out, sigma_bar / sqrt(2) is left.
    """
    require_positive("sigma", sigma)
    require_positive("R", R)
    require_positive("C", C)
    return math.sqrt(2) * sigma * R / C


def client_level_mu(q: float, T: float, sigma: float, R: float, C: float) -> float:
    """Return q sqrt(T (e^{1/sigma_bar^2} - 1)): the parameter PRECAD's Theorem 2 assumes. An approximation.

    Infinite when it overflows, and then a certificate made of it is vacuous. At the paper's own settings it lies
    between 3.7e3 and 1.9e25.
    """
    require_probability("q", q)
    return gdp_clt(q, client_noise_multiplier(sigma, R, C), T)
