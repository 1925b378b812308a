"""Group privacy from one (epsilon, delta) point.

What (epsilon, delta)-DP for one unit says about k of them. A bound, and a loose one: the exact distribution of k
sampled units is in `precad.dp.accountants.group_mixture`.
"""

import math

from precad.dp.checks import integral, require_delta_or_zero, require_non_negative


def group_dp(epsilon: float, delta: float, k: float) -> tuple[float, float]:
    """Return (k epsilon, delta (e^{k epsilon} - 1)/(e^epsilon - 1)) for groups of k. delta >= 1 is true, and says
    nothing.

    Source: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", Section 2.3, with the
    geometric sum of the deltas kept. k delta at epsilon = 0.
    """
    require_non_negative("epsilon", epsilon)
    require_delta_or_zero(delta)
    k = integral("k", k)
    return k * epsilon, delta * geometric_sum(epsilon, k) if delta > 0 else 0.0


def geometric_sum(epsilon: float, k: int) -> float:
    """Return (e^{k epsilon} - 1)/(e^epsilon - 1) = sum over j < k of e^{j epsilon}; infinite when it overflows."""
    if epsilon == 0 or k <= 1:
        return float(k)
    log_sum = (k - 1) * epsilon + math.log(-math.expm1(-k * epsilon)) - math.log(-math.expm1(-epsilon))
    return math.exp(log_sum) if log_sum < 709 else math.inf
