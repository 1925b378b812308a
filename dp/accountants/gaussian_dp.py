"""Gaussian differential privacy: the (epsilon, delta) curve of telling N(0, 1) from N(mu, 1), and its inverses.

A mechanism is mu-GDP if no test of neighbouring inputs does better than the best test between these two. Source: Dong,
Roth, Su, "Gaussian Differential Privacy", JRSS-B '22. A mu-GDP mechanism is (epsilon, delta(epsilon; mu))-DP for every
epsilon:

    delta(epsilon; mu) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2).

Values are bounds wherever mu itself is exact: one Gaussian release of multiplier sigma is exactly (1/sigma)-GDP, and
n independent ones are sqrt(n)/sigma-GDP. `gdp_clt` is not: it is the parameter of a limit.

Numerics. With t = epsilon/mu - mu/2 and Mills' ratio M(x) = Phi(-x)/phi(x),

    delta = phi(t) (M(t) - M(t + mu)) = phi(t) * integral over [t, t + mu] of (1 - x M(x)) dx,

where the difference loses its leading digits only for small mu, and the integral never does. It holds the relative
error of delta below 1e-7 for 1e-300 < delta < 1 (tests/dp/accountants/test_gaussian_dp.py, against mpmath).
"""

import math
from typing import Any, Final

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from precad.dp.checks import (
    integral,
    require_delta,
    require_finite,
    require_non_negative,
    require_positive,
    require_probability,
)

_SMALL_MU: Final = 0.05  # below it the integral, over so short an interval that 10 nodes are exact to rounding
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)


def delta_from_mu(epsilon: float, mu: float) -> float:
    """Return delta(epsilon; mu), see the module.

    Any real epsilon; mu = 0 gives max(0, 1 - e^epsilon). Bound if mu is.
    """
    require_finite("epsilon", epsilon)
    require_non_negative("mu", mu)
    epsilon, mu = float(epsilon), float(mu)
    if mu == 0:
        return max(0.0, -math.expm1(min(epsilon, 0.0)))
    return _delta_at(epsilon / mu - mu / 2, mu)


def _delta_at(t: float, mu: float) -> float:
    """Return delta as a function of t = epsilon/mu - mu/2, which stays moderate where epsilon does not."""
    if t > 40:  # phi(t) is below 1e-347
        return 0.0
    if t > -10 and mu < _SMALL_MU:
        x = t + mu * (1 + _NODES) / 2
        return float(_density(t) * mu / 2 * (_WEIGHTS @ (1 - x * _mills_ratio(x))))
    if t > 0:
        return float(_density(t) * (_mills_ratio(t) - _mills_ratio(t + mu)))
    if t + mu > 10:  # far apart: nothing cancels, while the exponent below would lose its digits to mu^2
        return float(ndtr(-t) - _density(t) * _mills_ratio(t + mu))
    return float(-math.expm1(mu * (t + mu / 2) + float(log_ndtr(-t - mu))) - ndtr(t))


def _density(t: float) -> float:
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def _mills_ratio(x: Any) -> Any:
    """Phi(-x) / phi(x), of a float or an array."""
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def eps_from_mu(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 with delta(epsilon; mu) <= delta: 0 once delta >= 2 Phi(mu/2) - 1.

    Bound if mu is.
    """
    require_delta(delta)
    require_non_negative("mu", mu)
    delta, mu = float(delta), float(mu)
    if mu == 0 or _delta_at(-mu / 2, mu) <= delta:
        return 0.0
    lowest = max(-mu / 2, -45.0)  # epsilon = 0, or where delta is 1 in float64
    highest = max(-float(ndtri(delta)) + 1e-9, lowest)  # delta(epsilon; mu) <= Phi(-t), more than rounding beyond it
    t = brentq(lambda at: _log(_delta_at(at, mu)) - math.log(delta), lowest, highest, xtol=1e-15, rtol=1e-15)
    return float(mu * (t + mu / 2))


def mu_from_eps_delta(epsilon: float, delta: float) -> float:
    """Return the mu with delta(epsilon; mu) = delta, by root finding: what `delta_from_mu` inverts.

    Raises: ValueError if epsilon < 0 and delta < 1 - e^epsilon, where no mechanism is that private.
    """
    require_finite("epsilon", epsilon)
    require_delta(delta)
    if delta < -math.expm1(min(epsilon, 0.0)):
        raise ValueError(f"delta: expected at least 1 - e^epsilon for negative epsilon = {epsilon}, found {delta}")

    def excess(log_mu: float) -> float:
        return _log(delta_from_mu(epsilon, math.exp(log_mu))) - math.log(delta)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        if low < -600:  # delta is 1 - e^epsilon to rounding
            return 0.0
        low *= 2
    while excess(high) < 0:
        high += 1
    return math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))


def _log(delta: float) -> float:
    return math.log(delta) if delta > 0 else -800.0  # below every float's logarithm


def gdp_composed_mu(sigma: float, n_releases: float) -> float:
    """Return sqrt(n) / sigma: exact parameter of n independent Gaussian releases of multiplier sigma. Bound."""
    require_positive("sigma", sigma)
    return math.sqrt(integral("n_releases", n_releases)) / sigma


def gdp_clt(p: float, sigma: float, T: float) -> float:
    """Return p sqrt(T (e^{1/sigma^2} - 1)): limit of T Poisson(p) Gaussian rounds as T grows with p sqrt(T) fixed.

    Source: Bu, Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy", HDSR '20. An approximation: at
    finite T it is above or below the truth, and below it in the tails that small deltas look at. May be infinite.
    """
    require_probability("p", p)
    require_positive("sigma", sigma)
    T = integral("T", T)
    if p == 0 or T == 0:
        return 0.0
    with np.errstate(over="ignore"):
        return float(p * math.sqrt(T) * np.sqrt(np.expm1(np.float64(sigma) ** -2)))
