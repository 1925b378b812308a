"""Test that what an audit client uploads enters the sum as it is, with a factor of 1.

The slope of scores over contributions is Student's, over all observations and in each part of them (`parts`). Where it
is known whose canaries they are, so is the factor of one client in one round, beside that round's noise. A client that
counts twice once, or not at all, moves no mean of all, so these pairs have most of the chance. Chances add up:
Bonferroni.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from precad.dp.auditing.observed import Observed
from precad.dp.auditing.parts import Parts

_OF_ALL: Final = 0.1
"""Share of the chance of a false alarm that the factor over all observations has."""
_OF_PARTS: Final = 0.2
"""Likewise all parts together; clients have what is left."""


def overall(observed: Observed, alpha: float) -> tuple[float, float]:
    """Return an interval of the factor over all observations, which misses 1 with a chance of at most its share."""
    weights, power = observed.contributions, float(np.square(observed.contributions).sum())
    if power == 0 or (freedom := weights.size - 1) == 0:
        return -math.inf, math.inf
    slope = float((weights * observed.scores).sum()) / power
    spread = math.sqrt(float(np.square(observed.scores - slope * weights).sum()) / freedom)
    reach = float(student.isf(_OF_ALL * alpha / 2, freedom)) * spread / math.sqrt(power)
    return slope - reach, slope + reach


def uneven(observed: Observed, alpha: float) -> Iterator[str]:
    """Yield where uploads enter with another factor; nothing, but for a chance of what `overall` leaves of alpha."""
    yield from _of_parts(observed, _OF_PARTS * alpha)
    if observed.clients is not None:
        yield from _of_clients(observed, observed.clients, (1 - _OF_ALL - _OF_PARTS) * alpha)


def _of_parts(observed: Observed, level: float) -> Iterator[str]:
    """Yield the part whose factor is least likely, by Student's law in each."""
    weights, scores, parts = observed.contributions, observed.scores, Parts(*observed.scores.shape)
    power, sizes = parts.sums(np.square(weights)), parts.sums(np.ones_like(weights))
    is_told = (power > 0) & (sizes > 1)
    if not is_told.any():
        return
    power, freedom = np.where(is_told, power, 1.0), np.where(is_told, sizes - 1, 1.0)
    slopes = parts.sums(weights * scores) / power
    left = np.maximum(parts.sums(np.square(scores)) - np.square(slopes) * power, 0.0)
    spread = np.sqrt(left / freedom / power)
    far = np.divide(np.abs(slopes - 1), spread, out=np.zeros_like(spread), where=is_told & (spread > 0))
    chances = np.where(is_told, 2 * student.sf(far, freedom), 1.0)
    place = np.unravel_index(int(chances.argmin()), chances.shape)
    if float(chances[place]) * int(is_told.sum()) < level:
        yield (
            f"arrival: expected a factor of 1 on uploads everywhere, found {slopes[place]:.4g} in {parts.where(place)}"
        )


def _of_clients(observed: Observed, clients: NDArray[np.int64], level: float) -> Iterator[str]:
    """Yield the round and the client whose factor is least likely. clients: (m,), whose each canary is, from 0."""
    weights, residuals = observed.contributions, observed.residuals
    rounds, freedom = len(weights), weights.shape[1] - 1
    power, pull = np.zeros((2, rounds, int(clients.max()) + 1))
    for t in range(rounds):
        np.add.at(power[t], clients, np.square(weights[t]))
        np.add.at(pull[t], clients, weights[t] * residuals[t])
    is_told = power > 0
    if not is_told.any() or freedom < 1:
        return
    along = np.divide(pull, np.sqrt(power), out=np.zeros_like(pull), where=is_told)
    left = np.maximum(np.square(residuals).sum(axis=1)[:, None] - np.square(along), 0.0)
    far = np.divide(along, np.sqrt(left / freedom), out=np.zeros_like(along), where=left > 0)
    chances = np.where(is_told, 2 * student.sf(np.abs(far), freedom), 1.0)
    place = np.unravel_index(int(chances.argmin()), chances.shape)
    if float(chances[place]) * int(is_told.sum()) < level:
        factor, (t, client) = 1 + pull[place] / power[place], (int(i) for i in place)
        yield f"arrival: expected a factor of 1 on uploads, found {factor:.3g} in round {t} of audit client {client}"
