"""PRECAD at client level: the noise that one client's whole update sees, and the rounds that a client takes part in.

The neighbouring relation is adding or removing one client. The exact accounting of K of them is in
`precad.dp.accountants.group_mixture`, what it says about losses in `precad.dp.certificates.expected_loss`.
"""

import math
from typing import Final

from precad.dp.checks import integral, require_positive, require_probability

_ROUNDING: Final = 1e-9
"""A rate times a number of rounds may come out a little above the whole number that it is."""


def client_noise_multiplier(sigma: float, R: float, C: float, n_servers: int = 2) -> float:
    """Return sigma_bar = sqrt(2) sigma R / C: both servers' noise over the clip C of one client's update.

    n_servers: whose noise counts. If one server leaves its noise out, sigma R / C is left.
    """
    require_positive("sigma", sigma)
    require_positive("R", R)
    require_positive("C", C)
    return math.sqrt(n_servers) * float(sigma) * float(R) / float(C)


def expected_participation(q: float, rounds: int) -> int:
    """Return the expected number of rounds that a client is in, q T, rounded up: at least one if it may be in any."""
    return max(int(q * rounds > 0), math.ceil(q * rounds - _ROUNDING))


def participation_quantile(T: float, q: float, beta: float) -> int:
    """Return min { t : P(Bin(T, q) > t) <= beta }: rounds a client takes part in, but for probability beta.

    A bound before training is the one for this many rounds at delta - beta, as delta in all.
    """
    from scipy.stats import binom  # half a second, which a start does not wait for

    T = integral("T", T)
    require_probability("q", q)
    require_probability("beta", beta)
    low, high = 0, T  # P(Bin > T) = 0
    while low < high:
        middle = (low + high) // 2
        if binom.sf(middle, T, q) <= beta:
            high = middle
        else:
            low = middle + 1
    return low
