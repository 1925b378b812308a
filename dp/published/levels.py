"""Whole users, and instances within them, as other papers have them. For comparison alone.

Source: Naseri, Hayes, De Cristofaro, "Local and Central Differential Privacy for Robustness and Privacy in Federated
Learning", NDSS '22. The printed noise scale is N times too large, and is repaired here. A record lives in one user's
set, so all records together have the largest of the users' epsilons at one delta (parallel composition).
"""

import math
from collections.abc import Mapping, Sequence

from precad.dp.accountants.pld import PrivacyAccountant, SampledGaussian
from precad.dp.checks import integral, require_positive, require_probability


def central_noise_std(z: float, S: float, q: float, N: float) -> float:
    """Return z S/(q N): standard deviation of the noise on the average over q N users, multiplier z."""
    require_positive("z", z)
    require_positive("S", S)
    require_probability("q", q)
    if q == 0:
        raise ValueError("q: expected a number above 0 to average over q N users, found 0")
    return z * S / (q * integral("N", N, at_least=1))


def joint_clip(block_clips: Sequence[float]) -> float:
    """Return sqrt(sum_l S_l^2): the sensitivity of an update whose blocks are clipped apart. Bound.

    L equal blocks keep the multiplier if S_l = S/sqrt(L); clipping each at S leaves sigma/sqrt(L) of it.
    """
    if len(block_clips) == 0:
        raise ValueError("block_clips: expected at least one, found none")
    for clip in block_clips:
        require_positive("block_clips", clip)
    return math.hypot(*block_clips)


def instance_level_epsilon(
    steps: Mapping[str, tuple[SampledGaussian, int]], delta: float, accountant: PrivacyAccountant
) -> float:
    """Return the largest epsilon of any user's records at one delta, each after its own steps. As strong as the
    accountant."""
    if not steps:
        raise ValueError("steps: expected at least one user, found none")
    return max(accountant.epsilon(event, rounds, delta) for event, rounds in steps.values())
