"""Plan guesses of one run: how many scores are taken to be in, and how many to be out, before any is seen.

A plan is the one of a small grid that serves best where every figure is as printed. How many of its guesses are right
follows from the law of the likelihood ratio, which is the accountant's privacy loss. So a plan depends on the printed
round and on who was in which rounds. It knows neither scores nor coins, and no confidence is spent.

Where draws are rare, a high score says more than a low one, so the grid has plans of unequal parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.group_mixture import Direction, loss_distribution
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing.guesses import Array, Guesses, Plan
from precad.dp.checks import require_count

Best = Callable[[Sequence[Guesses]], int]
"""Guesses of one plan each to the index of those that refute the largest epsilon."""

_SHARES: Final = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8)
"""Parts of all canaries that are guessed."""
_PARTS: Final = (0.5, 0.625, 0.75, 0.875)
"""Parts of these that are taken to be in."""
_LESS_LUCK: Final = 0.43
"""Standard deviations below the mean that one run of three is: few guesses serve well in the mean, and often badly."""
_MOST_LAWS: Final = 5
"""Numbers of rounds, at most, of which a law is computed: a plan need not be exact."""
_STEP: Final = 0.02
"""Largest step of a law's grid."""


def planned(present: NDArray[np.bool_], event: SampledGaussian, best: Best) -> Plan:
    """Return the plan that serves best where every figure is as printed. present: (T, m), of canaries' clients.

    Raises ValueError for a single canary.
    """
    canaries = present.shape[1]
    require_count("canaries", canaries, at_least=2)
    plans, right = _plans(canaries), expected_right(present.sum(axis=0), event)
    return plans[best([_with_less_luck(plan, right) for plan in plans])]


def _plans(canaries: int) -> list[Plan]:
    """Return the grid: most guesses first, and equal parts first."""
    found: dict[Plan, None] = {}
    for share in reversed(_SHARES):
        made = max(2, 2 * round(share * canaries / 2))
        for part in _PARTS:
            highest = round(part * made)
            found[Plan(highest, made - highest)] = None
    return list(found)


def _with_less_luck(plan: Plan, right: Array) -> Guesses:
    """Return the guesses of a run that two of three surpass."""
    mean = min(float(right[0, plan.highest] + right[1, plan.lowest]), float(plan.made))
    spread = math.sqrt(mean * (1 - mean / plan.made))
    return Guesses(right.shape[1] - 1, plan.made, max(0, math.floor(mean - _LESS_LUCK * spread)))


def expected_right(rounds: NDArray[np.int64], event: SampledGaussian) -> Array:
    """Return how many are in of the k highest ratios, and out of the k lowest, for k = 0 to m; (2, m + 1).

    rounds: (m,), in which each canary's client was. Many different numbers are rounded to a few.
    """
    m, numbers = len(rounds), np.unique(rounds)
    if len(numbers) > _MOST_LAWS:
        numbers = np.unique(np.quantile(rounds, np.linspace(0, 1, _MOST_LAWS), method="nearest"))
    nearest = np.abs(rounds[:, None] - numbers).argmin(axis=1)
    laws = [
        _law(event, int(number)) * [[1.0], [half], [half]]
        for number, half in zip(numbers, np.bincount(nearest) / 2, strict=True)
    ]
    ratios, of_in, of_out = np.concatenate(laws, axis=1)
    order = np.argsort(ratios, kind="stable")
    of_in, of_out = of_in[order], of_out[order]
    return np.array([_at_end(of_in[::-1], of_out[::-1], m), _at_end(of_out, of_in, m)])


def _at_end(right: Array, wrong: Array, m: int) -> Array:
    """Return how many are right of the first k, for k = 0 to m. right, wrong: expected numbers, in order of guesses."""
    reached, of_them = np.append(0.0, np.cumsum(right + wrong)), np.append(0.0, np.cumsum(right))
    return np.asarray(np.interp(np.arange(m + 1, dtype=np.float64), reached, of_them))


def _law(event: SampledGaussian, rounds: int) -> Array:
    """Return likelihood ratios of in to out, their chances for one that is in, and for one that is out; (3, n)."""
    if rounds == 0:
        return np.array([[0.0], [1.0], [1.0]])
    found = []
    for direction, sign in ((Direction.ATTACKED_VS_BENIGN, 1), (Direction.BENIGN_VS_ATTACKED, -1)):
        law = loss_distribution(1, event.sampling_rate, event.noise_multiplier, rounds, direction, largest_step=_STEP)
        losses = sign * law.step * (law.lowest + np.arange(len(law.mass)))
        chances = [law.mass, np.zeros_like(law.mass)]
        found.append(np.array([losses, *chances[::sign]]))
    return np.concatenate(found, axis=1)
