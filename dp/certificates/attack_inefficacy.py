"""Bounds on the attack cost: what k attackers can change in an expected cost, from one (epsilon, delta) point.

J is the expectation of a cost C over training, J' the same after the attack. C_bar must bound |C| for EVERY parameter
vector: clip an unbounded loss, C = min(loss, C_bar), in J as well. The largest cost seen is not a bound.

Source: Xie et al., "Unraveling the Connections between Privacy and Certified Robustness in Federated Learning Against
Poisoning Attacks", CCS '23. We re-derived the formulas. k is a group distance: attackers that join, or twice those
that replace. Results are bounds where (epsilon, delta) is a bound.
"""

import math
from typing import Final

import numpy as np

from precad.dp.accountants.group_privacy import group_dp
from precad.dp.accountants.privacy_loss import DeltaCurve
from precad.dp.certificates.expected_loss import robust_bounds
from precad.dp.checks import (
    require_count,
    require_delta_or_zero,
    require_finite,
    require_non_negative,
    require_one_of,
    require_positive,
)

SIGNS = ("nonneg", "nonpos", "mixed")
"""Range of the cost: [0, C_bar], [-C_bar, 0], or [-C_bar, C_bar]."""


def xie_attack_inefficacy_bounds(
    J: float, k: float, epsilon: float, delta: float, Cbar: float, sign: str
) -> tuple[float, float]:
    """Return (lowest, highest) J' after k attackers, by the sign of the cost.

    With g = (e^{k eps} - 1)/(e^eps - 1), k at eps = 0:

        nonneg   max(0, e^{-k eps} (J - g delta C_bar)) <= J' <= min(C_bar, e^{k eps} J + g delta C_bar)
        nonpos   the same of -J, swapped and negated
        mixed    the same of J + C_bar with 2 C_bar, less C_bar
    """
    require_positive("Cbar", Cbar)
    require_one_of("sign", sign, SIGNS)
    _require_cost(J, -Cbar if sign != "nonneg" else 0.0, Cbar if sign != "nonpos" else 0.0)
    if sign == "nonpos":
        low, high = _nonnegative(-J, k, epsilon, delta, Cbar)
        return -high, -low
    if sign == "mixed":
        low, high = _nonnegative(J + Cbar, k, epsilon, delta, 2 * Cbar)
        return low - Cbar, high - Cbar
    return _nonnegative(J, k, epsilon, delta, Cbar)


def _nonnegative(J: float, k: float, epsilon: float, delta: float, Cbar: float) -> tuple[float, float]:
    k_epsilon, k_delta = group_dp(epsilon, delta, k)
    grown = math.exp(k_epsilon) * J if k_epsilon < 700 and J > 0 else (math.inf if J > 0 else 0.0)
    shrunk = math.exp(-k_epsilon) * (J - k_delta * Cbar) if math.isfinite(k_delta) else 0.0
    return max(0.0, shrunk), min(Cbar, grown + k_delta * Cbar)


def inefficacy_bounds_over_curve(J: float, k: int, curve: DeltaCurve, Cbar: float) -> tuple[float, float]:
    """Return (lowest, highest) J' in [0, C_bar] after k attackers: the best over all points of one unit's curve.

    Each point's group privacy (k eps, g delta) is a point of the curve of k units.
    `precad.dp.certificates.expected_loss` takes the best, of the cost and of C_bar less the cost. The result is a bound
    where the curve is.
    """
    require_count("k", k)
    if k == 0:
        return robust_bounds(J, Cbar, _NOTHING, _NOTHING)
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.where(
            curve.epsilons > 0, np.expm1(k * curve.epsilons) / np.expm1(np.maximum(curve.epsilons, 1e-300)), float(k)
        )
        deltas = np.where(curve.deltas > 0, np.minimum(growth * curve.deltas, 1.0), 0.0)
    of_group = DeltaCurve(k * curve.epsilons, np.where(np.isnan(deltas), 1.0, deltas))
    return robust_bounds(J, Cbar, of_group, of_group)


_NOTHING: Final = DeltaCurve(np.zeros(1), np.zeros(1))


def xie_corollary_k(J: float, tau: float, epsilon: float, delta: float, Cbar: float, sign: str) -> float:
    """Return the least real number of attackers that change the cost by the factor tau >= 1.

    With a = e^eps - 1, eps > 0:

        nonneg   to lower J in [0, C_bar] to J / tau:   ln(tau (aJ + C_bar delta)/(aJ + C_bar delta tau)) / eps
        nonpos   to lower J in [-C_bar, 0) to tau J, tau <= -C_bar/J:
                                                        ln((aJ tau - C_bar delta)/(aJ - C_bar delta)) / eps

    The number of attackers is the ceiling of the result. For nonneg costs the result is 0 if J = 0; a nonpos J must
    be < 0.
    """
    require_positive("epsilon", epsilon)
    require_delta_or_zero(delta)
    require_positive("Cbar", Cbar)
    require_one_of("sign", sign, ("nonneg", "nonpos"))
    require_finite("tau", tau)
    if tau < 1:
        raise ValueError(f"tau: expected at least 1, found {tau}")
    # both sides times e^-eps: 1 - e^-eps for a, and nothing overflows
    a, loss = -math.expm1(-epsilon), Cbar * delta * math.exp(-epsilon)
    if sign == "nonneg":
        _require_cost(J, 0.0, Cbar)
        return math.log(tau * (a * J + loss) / (a * J + loss * tau)) / epsilon if J > 0 else 0.0
    _require_cost(J, -Cbar, 0.0)
    if J == 0:
        raise ValueError(f"J: expected a number below 0 for costs that are nonpos, found {J}")
    if tau > -Cbar / J:
        raise ValueError(f"tau: expected at most -Cbar/J = {-Cbar / J}, found {tau}")
    return math.log((a * J * tau - loss) / (a * J - loss)) / epsilon


def attackers_needed(k: float) -> int:
    """Return the corollary's value as a number of attackers: its ceiling."""
    require_non_negative("k", k)
    return math.ceil(k)


def _require_cost(J: float, low: float, high: float) -> None:
    require_finite("J", J)
    if not low <= J <= high:
        raise ValueError(f"J: expected a number in [{low}, {high}], the range of its sign, found {J}")
