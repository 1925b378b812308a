"""Test that no noise is used twice: in two rounds, or by both servers.

The noise of a round at the canaries' coordinates is a vector of m independent draws of mean 0. Of two such vectors the
uncentred correlation r has a known law: r sqrt(m - 1) / sqrt(1 - r^2) is Student's with m - 1 degrees of freedom. The
largest of all pairs is judged at the test's level over the number of pairs. A chance of each that adds up: Bonferroni.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from precad.dp.checks import require_delta

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Repetition:
    """Hold the pair of noise vectors that agree most."""

    correlation: float
    rounds: tuple[int, int]
    """The two rounds. The same one twice: of both servers."""
    p_value: float
    """Chance of a pair so correlated, times the number of pairs."""
    is_found: bool

    def __str__(self) -> str:
        first, second = self.rounds
        what = f"of both servers in round {first}" if first == second else f"of rounds {first} and {second}"
        return f"a correlation of {self.correlation:.3f} in the noise {what}"


def repeated_noise(residuals: Array, own_noise: Array | None, alpha: float) -> Repetition:
    """Return the most correlated pair, found where it has a chance below alpha with fresh noise.

    residuals: (T, m), of all rounds against one another.
    own_noise: (T, m), round by round against the residuals, also across rounds. None where the view has none.
    """
    require_delta(alpha)
    unit = _unit(residuals)
    pairs = np.triu(unit @ unit.T, k=1)
    count = len(unit) * (len(unit) - 1) // 2
    tables = [pairs]
    if own_noise is not None:
        tables.append(_unit(own_noise) @ unit.T)
        count += len(unit) ** 2
    best = max(tables, key=lambda table: float(np.abs(table).max()))
    first, second = (int(i) for i in np.unravel_index(int(np.abs(best).argmax()), best.shape))
    r = max(-1.0, min(1.0, float(best[first, second])))
    freedom = residuals.shape[1] - 1
    if count == 0 or freedom < 1:
        return Repetition(0.0, (0, 0), 1.0, is_found=False)
    left = max(1 - r * r, 1e-300)
    chance = 2 * float(student.sf(abs(r) * math.sqrt(freedom / left), freedom))
    return Repetition(r, (first, second), min(1.0, chance * count), is_found=chance * count < alpha)


def _unit(rows: Array) -> Array:
    """Return each row over its length; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))
