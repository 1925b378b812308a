"""Encode what a model does with held-out records as vectors of norm at most one, and read figures from their noisy sum.

A record of which the model gets a share c in [0, 1] right, with a loss l that is clipped to [0, L], is

    (b, a (2c - 1), a (2l/L - 1))    a^2 = 1 / (2 + sqrt 2), b^2 + 2 a^2 = 1

so that every record has R = 1. Let there be n records, and noise t in every number. The error bar of a ratio y, |y| <=
1, is then t / n sqrt(1/a^2 + y^2/b^2). These weights minimise it at |y| = 1, where it is (1 + sqrt 2) t /
n. Our derivation. Sensitivity and rounding are those of `precad.dp.queries.encodings`.

Both figures are ratios of two numbers of the sum, so Fieller's interval covers each at its level, whatever the count.
A loss that is no finite number counts as L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from precad.dp.checks import require_count, require_positive
from precad.dp.queries.encodings import ROWS_AT_ONCE, Values, on_row_grid, sum_of_rows, weights_on_grid
from precad.dp.queries.estimates import EXACT, LEVEL, MOST_LEVEL, Estimate, Rounding, quantile_beside, ratio
from precad.dp.queries.kinds import EVALUATION_DIM

_A: Final = math.sqrt(1 / (2 + math.sqrt(2)))
_WEIGHTS: Final = (math.sqrt(1 - 2 * _A * _A), _A, _A)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEncoding:
    """The vectors of one evaluation. Raises ValueError for a bound that is none."""

    loss_bound: float
    """L: the most that a record's loss counts."""
    frac_bits: int
    """f of the grid."""

    def __post_init__(self) -> None:
        require_positive("loss_bound", self.loss_bound)
        require_count("frac_bits", self.frac_bits)

    @property
    def weights(self) -> Values:
        """Return the weight of each number, on the grid, (3,)."""
        return weights_on_grid(_WEIGHTS, self.frac_bits)

    def rows(self, right: Values, losses: Values) -> Values:
        """Return the vector of each record, (n, 3), each of norm at most 1.

        right: the share of each record that the model gets right, (n,). losses: (n,), of any content.
        """
        known = np.where(np.isfinite(losses), losses, self.loss_bound)
        shares = np.clip(np.where(np.isfinite(right), right, 0.0), 0.0, 1.0)
        parts = [np.ones_like(known), 2 * shares - 1, 2 * np.clip(known / self.loss_bound, 0.0, 1.0) - 1]
        return on_row_grid(np.stack(parts, axis=1) * self.weights, self.frac_bits)

    def total(self, right: Values, losses: Values) -> Values:
        """Return the sum of `rows`, (3,): the float nearest to each number."""
        spans = (slice(start, start + ROWS_AT_ONCE) for start in range(0, len(right), ROWS_AT_ONCE))
        pieces = (self.rows(right[span], losses[span]) for span in spans)
        return sum_of_rows(pieces, self.frac_bits, EVALUATION_DIM)

    def total_of(self, right: float, n: float, loss_sum: float) -> Values:
        """Return the sum of `rows`, (3,), but for their rounding, where counts alone are known.

        right: how many of n records, at most n. loss_sum: the sum of their losses, of any content. Whatever they are,
        the norm is at most n, as each number is a mean of rows'.
        """
        lost = min(max(loss_sum / self.loss_bound, 0.0), n) if math.isfinite(loss_sum) else n  # n L may overflow
        return np.array([n, 2 * right - n, 2 * lost - n]) * self.weights

    def figures(
        self, noisy_sum: Values, noise_std: float, *, rounding: Rounding = EXACT, level: float = LEVEL
    ) -> Figures:
        """Return the figures that a sum, (3,), gives, whose numbers have Gaussian noise of `noise_std`.

        Each error bar covers its figure at the level by itself. Raises ValueError.
        """
        require_positive("noise_std", noise_std)
        if noisy_sum.shape != (EVALUATION_DIM,):
            raise ValueError(f"noisy_sum: expected shape ({EVALUATION_DIM},), found {noisy_sum.shape}")
        if not 0 < level <= MOST_LEVEL:
            raise ValueError(f"level: expected a number in (0, {MOST_LEVEL}], found {level}")
        off = rounding.of_each(noisy_sum) / noise_std
        sums, stds = noisy_sum / self.weights, noise_std / self.weights
        n, of_n = float(sums[0]), quantile_beside(level, off) * float(stds[0])
        reaches = quantile_beside(level, off, n_numbers=2) * stds
        shares = [_share(sums, reaches, place) for place in (1, 2)]
        return Figures(
            records=Estimate(n, n - of_n, n + of_n),
            accuracy=shares[0],
            loss=Estimate(*(self.loss_bound * one for one in (shares[1].value, shares[1].low, shares[1].high))),
            level=level,
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a model on held-out records, each with its error bar."""

    records: Estimate
    """How many records were counted."""
    accuracy: Estimate
    """Mean share that the model gets right, in [0, 1]."""
    loss: Estimate
    """Mean loss, each clipped to [0, L]."""
    level: float = LEVEL
    """Least share of evaluations in which an error bar covers the truth."""

    def named(self, *, has_accuracy: bool = True) -> Mapping[str, Estimate]:
        """Return the figures by name; without the accuracy where targets are numbers."""
        found = {"accuracy": self.accuracy} if has_accuracy else {}
        return {**found, "loss": self.loss, "records": self.records}


def _share(sums: Values, reaches: Values, place: int) -> Estimate:
    """Return (1 + y / n) / 2 within [0, 1]; all of it where the count may be zero."""
    n, y = float(sums[0]), float(sums[place])
    if (found := ratio(n, y, float(reaches[0]), float(reaches[place]))) is None:
        return Estimate(0.5, 0.0, 1.0)
    return Estimate(*((1 + one) / 2 for one in found)).within(0.0, 1.0)
