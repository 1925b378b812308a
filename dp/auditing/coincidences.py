"""Test that no values of the noise come again: in another order, as the other server's, or from a short table.

One server's noise is integers of a grid. Each is any given integer, of either sign, with a chance of at most
2 step / (sigma sqrt(2 pi)), for more noise with less. Let S be the absolute values of another draw of noise. Then those
of m fresh integers that are in S are at most binomial, with |S| times this chance. Given the draws before it within one
vector, so is each integer's chance to be one of them. Chances add up: Bonferroni.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from precad.dp.checks import require_delta, require_positive

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_PAIRS: Final = 2000
"""Pairs of rounds, about, at most: the nearest ones."""
_MOST_LIKELY: Final = 0.5
"""Chance of a single coincidence, at most: on a coarse grid values come again by themselves."""


def values_again(residuals: Array, own_noise: Array | None, noise: float, step: float, alpha: float) -> Iterator[str]:
    """Yield which two vectors share too many values; nothing, but for a chance of alpha, where noise is fresh.

    residuals, own_noise: (T, m), as one server has them. Rows are rounds.
    noise: the printed multiplier. step: of the grid, in the same unit.
    """
    require_delta(alpha)
    require_positive("noise", noise)
    if step <= 0:
        return
    theirs = _on_grid(residuals, step)
    found = [*_of_pairs(theirs, None), *_within(theirs)]
    if own_noise is not None:
        found += _of_pairs(theirs, _on_grid(own_noise, step))
    chance = 2 * step / (noise * math.sqrt(2 * math.pi))
    trials, sizes, hits = np.array([one[:3] for one in found]).T
    likely = sizes * chance
    tails = np.where(likely < _MOST_LIKELY, binom.sf(hits - 1, trials, np.minimum(likely, _MOST_LIKELY)), 1.0)
    best = int(tails.argmin())
    if float(tails[best]) * len(found) < alpha:
        expected = float((trials * likely)[best])
        yield f"noise: expected fresh draws, found {hits[best]} values again {found[best][3]} for {expected:.3g}"


Counted = tuple[int, int, int, str]
"""How many draws there are, how many values they may meet, how many do, and where, in words."""


def _of_pairs(theirs: list[Integers], ours: list[Integers] | None) -> Iterator[Counted]:
    """Yield each pair of nearby rounds: of one server, or of both."""
    rounds = len(theirs)
    farthest = min(rounds - 1, max(1, _MOST_PAIRS // rounds))
    values = [np.unique(one) for one in (theirs if ours is None else ours)]
    for t, fresh in enumerate(theirs):
        for other in range(max(0, t - farthest), t if ours is None else min(rounds, t + farthest + 1)):
            hits = int((values[other][np.searchsorted(values[other][:-1], fresh)] == fresh).sum())
            where = f"in rounds {other} and {t}" if ours is None else f"of rounds {other} and {t} of two servers"
            yield len(fresh), len(values[other]), hits, where


def _within(theirs: list[Integers]) -> Iterator[Counted]:
    """Yield each round by itself."""
    for t, fresh in enumerate(theirs):
        yield len(fresh), len(fresh), len(fresh) - len(np.unique(fresh)), f"within round {t}"


def _on_grid(table: Array, step: float) -> list[Integers]:
    return list(np.abs(np.rint(table / step)).astype(np.int64))
