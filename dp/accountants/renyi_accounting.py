"""Epsilon of sampled Gaussian rounds by Renyi divergences: (epsilon, delta) from one order, and the best of many.

The published tables of Xie et al. are `steps` times `rdp_sgm_poisson` on the orders `opacus`, with the conversion of
Mironov '17. The default, `balle` on `wide`, is the fallback of this project. Both are bounds on the same mechanism, and
every value here is a bound.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from precad.dp.checks import (
    require_delta,
    require_non_negative,
    require_one_of,
    require_order,
)

Array = NDArray[np.float64]


def rdp_to_eps_mironov(alpha: float, rho: float, delta: float) -> float:
    """Return rho + ln(1/delta)/(alpha - 1). Source: Mironov, "Renyi Differential Privacy", CSF '17, Proposition 3."""
    _require(alpha, rho, delta)
    return max(0.0, rho - math.log(delta) / (alpha - 1))


def rdp_to_eps_balle(alpha: float, rho: float, delta: float) -> float:
    """Return rho + ln(1 - 1/alpha) - (ln delta + ln alpha)/(alpha - 1), not below 0.

    Source: Balle, Barthe, Gaboardi, Hsu, Sato, "Hypothesis Testing Interpretations and Renyi Differential Privacy",
    AISTATS '20, Theorem 21.
    """
    _require(alpha, rho, delta)
    return max(0.0, rho + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1))


def rdp_to_eps_optimal(alpha: float, rho: float, delta: float) -> float:
    """Return the smallest epsilon that (alpha, rho) implies: no pair of divergence rho needs more.

    Source: Asoodeh, Liao, Calmon, Kosut, Sankar, "Three Variants of Differential Privacy", JSAIT '21:
    the smallest epsilon >= 0 with, over p in (delta, 1],

        min_p  e^{(alpha-1) eps} [p^alpha (p-delta)^{1-alpha} + (1-p)^alpha (e^eps - p + delta)^{1-alpha}]
               >= e^{(alpha-1) rho}.

    Solved to 1e-12 from above, within the value of Balle et al., which it cannot exceed.
    """
    _require(alpha, rho, delta)
    ceiling = rdp_to_eps_balle(alpha, rho, delta)

    def excess(epsilon: float) -> float:
        return _smallest_log_moment(alpha, epsilon, delta) - (alpha - 1) * rho

    if excess(0.0) >= 0:
        return 0.0
    if excess(ceiling) <= 0:
        return ceiling
    root, tolerance = brentq(excess, 0.0, ceiling, xtol=1e-12), 4e-12
    return float(min(root + tolerance, ceiling))


def _smallest_log_moment(alpha: float, epsilon: float, delta: float) -> float:
    """ln of the minimum above. The bracket is convex in p, as a divergence is; a grid of ln(p - delta) is refined."""

    def log_moment(log_gap: Array) -> Array:
        gap = np.exp(log_gap)
        p = delta + gap
        rest = np.maximum(1 - delta - gap, 0.0)
        with np.errstate(divide="ignore"):
            log_first = alpha * np.log(p) + (1 - alpha) * log_gap
            # e^eps - p + delta = e^eps - gap, positive since gap <= 1 - delta
            log_second = alpha * np.log(rest) + (1 - alpha) * (epsilon + np.log1p(-gap * math.exp(-epsilon)))
        return (alpha - 1) * epsilon + np.logaddexp(log_first, log_second)

    low, high = math.log(delta) - 30, math.log1p(-delta)
    for _ in range(12):
        grid = np.linspace(low, high, 65)
        values = log_moment(grid)
        best = int(np.argmin(values))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 64)]
    return float(values[best])


def _require(alpha: float, rho: float, delta: float) -> None:
    require_order(alpha)
    require_non_negative("rho", rho, may_be_infinite=True)
    require_delta(delta)


_OPACUS: Final = tuple(sorted({*(i / 10 for i in range(11, 110)), *map(float, range(12, 64))}))
_ALSO_WIDE: Final = (1.01, 1.02, 1.05, 11, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
ORDERS: Final[dict[str, tuple[float, ...]]] = {
    "opacus": _OPACUS,
    "wide": tuple(sorted({*_OPACUS, *map(float, _ALSO_WIDE)})),
}
"""Grids of orders by name: 1.1, 1.2 .. 10.9 and 12 .. 63, as the library of that name has them; and beyond."""

CONVERSIONS: Final[dict[str, Callable[[float, float, float], float]]] = {
    "mironov": rdp_to_eps_mironov,
    "balle": rdp_to_eps_balle,
    "optimal": rdp_to_eps_optimal,
}


class OrderGridWarning(UserWarning):
    """The best order is an end of the grid: the value is a bound, and a wider grid would lower it."""


def eps_from_rdp(
    rdp: Callable[[float], float], delta: float, method: str = "balle", orders: str | Sequence[float] = "wide"
) -> float:
    """Return the smallest epsilon over the orders, each converted by `method`.

    Warns if the best order is an end point.
    """
    require_delta(delta)
    require_one_of("method", method, tuple(CONVERSIONS))
    grid = order_grid(orders)
    epsilons = [CONVERSIONS[method](alpha, rdp(alpha), delta) for alpha in grid]
    best = min(epsilons)
    at = epsilons.index(best)
    if len(grid) > 1 and at in (0, len(grid) - 1) and 0 < best < math.inf:
        warnings.warn(f"the best order, {grid[at]:g}, is an end of the grid", OrderGridWarning, stacklevel=2)
    return best


def order_grid(orders: str | Sequence[float]) -> tuple[float, ...]:
    """Return the grid of that name, or the orders themselves, in ascending order."""
    if isinstance(orders, str):
        require_one_of("orders", orders, tuple(ORDERS))
        return ORDERS[orders]
    if len(orders) == 0:
        raise ValueError("orders: expected at least one, found none")
    for alpha in orders:
        require_order(alpha)
    return tuple(sorted(orders))
