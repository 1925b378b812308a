"""Xie et al.'s Condition 1. `precad.dp.certificates.prediction` has their formula for k units."""

import math

from precad.dp.certificates.prediction import require_point


def xie_condition_one(FA: float, FB: float, epsilon: float, delta: float) -> bool:
    """F_A > e^{2 eps} F_B + (1 + e^eps) delta: the prediction survives one unit. A bound if (epsilon, delta) is."""
    require_point(FA, FB, epsilon, delta)
    if epsilon > 350:
        return FB == 0 and delta == 0 and FA > 0
    return math.exp(2 * epsilon) * FB + (1 + math.exp(epsilon)) * delta < FA
