"""Bound what an attack can do to an expected loss, from the privacy of the attackers' influence.

L in [0, B] is the expectation, over training, of a quantity that is in [0, B] for every model. L' is that expectation
after the attack. For the curves d1 of attacked from benign and d2 of benign from attacked, any epsilon >= 0 gives

    L' <= e^eps L + B d1(eps),           L' <= B - e^-eps (B - L - B d2(eps)),
    L' >= e^-eps (L - B d2(eps)),        L' >= B - e^eps (B - L) - B d1(eps):

PRECAD's Theorem 2 on the loss, and the same on B minus the loss, which the paper leaves out. The best over any finite
set of epsilons is sound. Results are bounds where the curves are.
"""

import numpy as np
from scipy.special import ndtr, ndtri

from precad.dp.accountants.privacy_loss import Array, DeltaCurve
from precad.dp.checks import integral, require_non_negative, require_positive


def robust_bounds(
    L: float, B: float, attacked_vs_benign: DeltaCurve, benign_vs_attacked: DeltaCurve
) -> tuple[float, float]:
    """Return (lowest, highest) L' that the two curves allow, see the module. As strong as their label."""
    _require(L, B)
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


def gdp_robust_bounds(L: float, B: float, mu_total: float) -> tuple[float, float]:
    """Return B Phi(Phi^{-1}(L/B) -+ mu): all four inequalities of the module at once, for an exactly mu-GDP influence.

    L = 0 and L = B are fixed points. A bound if mu is exact; infinite mu is vacuous.
    """
    _require(L, B)
    require_non_negative("mu_total", mu_total, may_be_infinite=True)
    if L in (0, B) or mu_total == 0:
        return float(L), float(L)
    z = float(ndtri(L / B))
    return float(B * ndtr(z - mu_total)), float(B * ndtr(z + mu_total))


def precad_theorem2_bounds(L: float, B: float, mu: float, K: float) -> tuple[float, float]:
    """PRECAD Theorem 2, clipped to [0, B]: the first and third inequality of the module, on the curve of K mu-GDP.

        highest = inf_{eps >= 0} e^eps L + B delta(eps; m),     lowest = sup_{eps >= 0} e^-eps (L - B delta(eps; m))

    at their closed-form optima, m = K mu, z = Phi^{-1}(L/B): eps = max(0, -m^2/2 - m z) and max(0, m^2/2 - m z).
    K clients are added. A published reproduction, since mu comes from a central limit and group privacy does not
    hold for limits; a bound if mu is exact. Infinite mu gives [0, B].
    """
    _require(L, B)
    require_non_negative("mu", mu, may_be_infinite=True)
    K = integral("K", K)
    if K == 0 or mu == 0:
        return float(L), float(L)
    m = K * mu
    if L == 0:
        return 0.0, 0.0
    if L == B:
        return float(2 * B * ndtr(-m / 2)), float(B)
    # Where the optimal epsilon is not 0, the two terms add to B Phi(z -+ m).
    z, at_zero = float(ndtri(L / B)), float(B * (2 * ndtr(m / 2) - 1))
    highest = B * ndtr(z + m) if -m / 2 - z > 0 else L + at_zero
    lowest = B * ndtr(z - m) if m / 2 - z > 0 else L - at_zero
    return max(0.0, float(lowest)), min(float(B), float(highest))


def _require(L: float, B: float) -> None:
    require_positive("B", B)
    if isinstance(L, bool) or not 0 <= L <= B:
        raise ValueError(f"L must be in [0, B] = [0, {B}], got {L!r}")
