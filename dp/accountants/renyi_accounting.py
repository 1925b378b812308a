"""Epsilon of sampled Gaussian rounds by Renyi divergences: the best of many orders.

The published tables of Xie et al. are `steps` times `rdp_sgm_poisson` on the orders `opacus`, with the conversion of
Mironov '17. The default, `balle` on `wide`, is the fallback of this project. Both are bounds on the same mechanism.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Final

from precad.dp.accountants.renyi_conversion import rdp_to_eps_balle, rdp_to_eps_mironov, rdp_to_eps_optimal
from precad.dp.checks import (
    require_delta,
    require_one_of,
    require_order,
)

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
    """Smallest epsilon over the orders, each converted by `method`. Warns if the best order is an end point."""
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
        raise ValueError("orders must not be empty, got []")
    for alpha in orders:
        require_order(alpha)
    return tuple(sorted(orders))
