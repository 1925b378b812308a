"""Bound what an attack can do to an expected loss, from the privacy of the attackers' influence.

L in [0, B] is the expectation, over training, of a quantity that is in [0, B] for every model. L' is that expectation
after the attack. For the curves d1 of attacked from benign and d2 of benign from attacked, any epsilon >= 0 gives

    L' <= e^eps L + B d1(eps),           L' <= B - e^-eps (B - L - B d2(eps)),
    L' >= e^-eps (L - B d2(eps)),        L' >= B - e^eps (B - L) - B d1(eps):

PRECAD's Theorem 2 on the loss, and the same on B minus the loss, which the paper leaves out. The best over any finite
set of epsilons is sound. Results are bounds where the curves are.
"""

import numpy as np

from precad.dp.accountants.privacy_loss import Array, DeltaCurve
from precad.dp.checks import require_positive


def robust_bounds(
    L: float, B: float, attacked_vs_benign: DeltaCurve, benign_vs_attacked: DeltaCurve
) -> tuple[float, float]:
    """Return (lowest, highest) L' that the two curves allow, see the module. As strong as their label."""
    require_loss(L, B)
    d1, d2 = attacked_vs_benign, benign_vs_attacked
    grow, shrink = _exp(d1.epsilons), np.exp(-d2.epsilons)
    with np.errstate(invalid="ignore", over="ignore"):  # 0 * inf: an epsilon so large that it bounds nothing
        highest = min(
            B, float(np.nanmin(grow * L + B * d1.deltas)), float((B - shrink * (B - L - B * d2.deltas)).min())
        )
        lowest = max(
            0.0, float((shrink * (L - B * d2.deltas)).max()), float(np.nanmax(B - grow * (B - L) - B * d1.deltas))
        )
    return min(lowest, L), max(highest, L)


def _exp(epsilons: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(epsilons)


def require_loss(L: float, B: float) -> None:
    """Require a bound B > 0 and an expectation in [0, B]. Raises: ValueError."""
    require_positive("B", B)
    if isinstance(L, bool) or not 0 <= L <= B:
        raise ValueError(f"L: expected a number in [0, B] = [0, {B}], found {L!r}")
