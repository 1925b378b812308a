"""Rounds of the sampled Gaussian by one call: what tables of other papers are compared with."""

from collections.abc import Sequence

from precad.dp.accountants.pld import (
    PldAccountant,
    SampledGaussian,
    TwoStageSampledGaussian,
)
from precad.dp.accountants.renyi import rdp_composed, rdp_sgm_poisson
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.checks import (
    integral,
    require_delta,
    require_positive,
    require_probability,
)


def pld_eps_sgm(q: float, sigma: float, T: float, delta: float, visible: float | None = None) -> float:
    """Epsilon of T rounds of the Poisson(q)-sampled Gaussian by loss distributions, the larger of both directions.

    With visible = w, a round takes place only with probability w, and whether it did is known. Bound.
    """
    require_probability("q", q)
    require_positive("sigma", sigma)
    T = integral("T", T)
    require_delta(delta)
    if visible is None:
        return PldAccountant().epsilon(SampledGaussian(q, sigma), T, delta)
    require_probability("visible", visible)
    return PldAccountant().epsilon(TwoStageSampledGaussian(visible, q, sigma), T, delta)


def eps_sgm_rdp(
    q: float,
    sigma: float,
    steps: float,
    delta: float,
    method: str = "balle",
    orders: str | Sequence[float] = "wide",
) -> float:
    """Return epsilon of `steps` rounds of the Poisson(q)-sampled Gaussian. Bound, add/remove."""
    require_probability("q", q)
    require_positive("sigma", sigma)
    steps = integral("steps", steps)
    return eps_from_rdp(lambda alpha: rdp_composed(rdp_sgm_poisson(alpha, q, sigma), steps), delta, method, orders)
