"""The safety margin and the local sensitivity of a trimmed sum, in the reals.

`precad.dp.trimmed.propose_test_release` computes the margin on the grid. The closed form is our derivation.
"""

import math
from collections.abc import Sequence

from precad.dp.checks import integral, require_finite, require_positive


def tsum_safety_margin(norms: Sequence[float], F: float, tau: float, R: float) -> float:
    """Vectors that must change before the local sensitivity of TSum_F can exceed tau: clip(F - #{norm > tau}, 0, F).

    Infinite if tau >= R: no vector is that long. A norm of exactly tau does not count. Has sensitivity one.
    """
    F = _require(norms, F, R)
    require_positive("tau", tau)
    if tau >= R:
        return math.inf
    return max(0, F - sum(norm > tau for norm in norms))


def tsum_local_sensitivity(norms: Sequence[float], F: float, r: float, R: float) -> float:
    """Largest local sensitivity of TSum_F within r changed vectors: x_(m-F+1+r), R if r > F - 1, 0 below x_(1)."""
    F = _require(norms, F, R)
    r = integral("r", r)
    if r > F - 1:
        return float(R)
    rank = len(norms) - F + 1 + r
    return float(sorted(norms)[rank - 1]) if rank >= 1 else 0.0


def _require(norms: Sequence[float], F: float, R: float) -> int:
    require_positive("R", R)
    for norm in norms:
        require_finite("norms", norm)
        if not 0 <= norm <= R:
            raise ValueError(f"norms must be in [0, R] = [0, {R}], got {norm}")
    return integral("F", F)
