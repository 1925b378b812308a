"""Whole users, and instances within them: how the units of other trainings become sampled Gaussian rounds.

User level. Each of N users is in a round with probability q. Updates are clipped to S and averaged over the constant
q N, with noise z S/(q N) on the average: SampledGaussian(q, z) for a user. Source: Naseri, Hayes, De Cristofaro, "Local
and Central Differential Privacy for Robustness and Privacy in Federated Learning", NDSS '22. The printed noise scale
is N times too large, and is repaired here.

Instance level. Each user runs its own accountant over its own records. A record lives in one user's set, so all records
together have the largest of the users' epsilons at one common delta (parallel composition).

Budget. A round is tested before it runs, on the budget after it.
"""

import math
from collections.abc import Mapping, Sequence

from precad.dp.accountants.pld import Event, PrivacyAccountant, SampledGaussian
from precad.dp.checks import integral, require_count, require_positive, require_probability


def central_noise_std(z: float, S: float, q: float, N: float) -> float:
    """Return z S/(q N): standard deviation of the noise on the average over q N users, multiplier z."""
    require_positive("z", z)
    require_positive("S", S)
    require_probability("q", q)
    if q == 0:
        raise ValueError("q must be > 0 to average over q N users, got 0")
    return z * S / (q * integral("N", N, at_least=1))


def joint_clip(block_clips: Sequence[float]) -> float:
    """Return sqrt(sum_l S_l^2): the sensitivity of an update whose blocks are clipped apart. Bound.

    L equal blocks keep the multiplier if S_l = S/sqrt(L); clipping each at S leaves sigma/sqrt(L) of it.
    """
    if len(block_clips) == 0:
        raise ValueError("block_clips must not be empty, got []")
    for clip in block_clips:
        require_positive("block_clips", clip)
    return math.hypot(*block_clips)


def instance_level_epsilon(
    steps: Mapping[str, tuple[SampledGaussian, int]], delta: float, accountant: PrivacyAccountant
) -> float:
    """The largest epsilon of any user's records at one delta, each after its own steps. As strong as the accountant."""
    if not steps:
        raise ValueError("steps must name at least one user, got none")
    return max(accountant.epsilon(event, rounds, delta) for event, rounds in steps.values())


def may_start(event: Event, rounds_done: int, delta: float, budget: float, accountant: PrivacyAccountant) -> bool:
    """Tell whether the coming round leaves the budget kept: epsilon after it, not before, is what counts."""
    require_count("rounds_done", rounds_done)
    require_positive("budget", budget)
    return accountant.epsilon(event, rounds_done + 1, delta) <= budget
