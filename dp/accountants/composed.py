"""Bound what rounds of several tasks cost one unit together.

Rounds of different tasks compose like those of one. Without sampling all are one Gaussian release, whose multiplier s
has 1 / s^2 = sum of n / s_i^2, and epsilon is in closed form. With sampling, loss distributions on one grid are
composed by dp_accounting, pessimistic throughout, as `precad.dp.accountants.pld` does for one task.

Rounds without sampling may be chosen one after the other, each for what was released before, up to a limit that was
fixed before. Source: Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy", arXiv
2210.17520. Where sampled rounds are among them, their kinds and numbers are to be fixed before.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple
from typing import TYPE_CHECKING, Final

from precad.dp.accountants.pld import PldAccountant, SampledGaussian, gaussian_epsilon, grid_step, tractable
from precad.dp.checks import require_count, require_delta

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

Rounds = tuple[SampledGaussian | None, int]
"""A kind of round, and how many there were. None: a round costs everything."""
_LEAST_STEP: Final = 1e-5
"""Step of the common grid, at least. A kind of round that spreads less is counted with more loss than it has."""


def composed_epsilon(rounds: Iterable[Rounds], delta: float) -> float:
    """Return an epsilon with which all these rounds together are (epsilon, delta)-DP. Proved; zero for no rounds."""
    require_delta(delta)
    counts: Counter[SampledGaussian] = Counter()
    for event, n in rounds:
        require_count("rounds", n)
        if n and event is None:
            return math.inf
        if n and event is not None and event.sampling_rate:
            counts[event] += n
    if len(counts) <= 1:
        return max((PldAccountant().epsilon(event, n, delta) for event, n in counts.items()), default=0.0)
    return _epsilon(tuple(sorted(counts.items(), key=lambda item: astuple(item[0]))), delta)


@functools.lru_cache(maxsize=256)
def _epsilon(counts: tuple[tuple[SampledGaussian, int], ...], delta: float) -> float:
    """Return epsilon of at least two kinds of rounds."""
    bounded = [(tractable(event), n) for event, n in counts]
    whole = math.fsum(n / event.noise_multiplier**2 for event, n in bounded if event.sampling_rate == 1)
    sampled = [(event, n) for event, n in bounded if event.sampling_rate < 1]
    if not sampled:
        return gaussian_epsilon(whole**-0.5, delta)
    from precad.dp.accountants.privacy_loss import ROUNDING_PER_ROUND

    n_rounds = 1 + sum(n for _, n in sampled)
    if (left := delta - 2 * ROUNDING_PER_ROUND * n_rounds) <= 0:
        return math.inf
    step = max(min(grid_step(event) for event, _ in sampled), _LEAST_STEP)
    losses = [_loss(event, step).self_compose(n) for event, n in sampled]
    if whole:
        losses.append(_loss(SampledGaussian(1.0, whole**-0.5), step))
    return float(functools.reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(left))


def _loss(event: SampledGaussian, step: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return the loss of one round on a grid of that step, for adding and for removing the unit."""
    from dp_accounting.pld import privacy_loss_distribution

    if event.group_size > 1:
        return _loss_of_group(event, step)
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=event.noise_multiplier,
        sampling_prob=event.sampling_rate,
        value_discretization_interval=step,
        pessimistic_estimate=True,
        neighboring_relation=privacy_loss_distribution.NeighborRel.ADD_OR_REMOVE_ONE,
    )


def _loss_of_group(event: SampledGaussian, step: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return that of a group of records: our own loss distribution, as the library holds one."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    from precad.dp.accountants.group_mixture import Direction, one_round_on_grid

    def pmf(direction: Direction) -> pld_pmf.PLDPmf:
        found = one_round_on_grid(event.group_size, event.sampling_rate, event.noise_multiplier, direction, step)
        return pld_pmf.DensePLDPmf(step, found.lowest, found.mass, found.infinite, True)

    with_group, without = pmf(Direction.ATTACKED_VS_BENIGN), pmf(Direction.BENIGN_VS_ATTACKED)
    return privacy_loss_distribution.PrivacyLossDistribution(with_group, without)
