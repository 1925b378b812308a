"""Encode the records of one column as vectors of norm at most one, whose sum answers a query.

With y = (2x - low - high) / (high - low) in [-1, 1], after x is clipped to [low, high], a record is

    count       (1)  where low <= x <= high, else (0)
    mean        (a, b y)                   a^2 = b^2 = 1/2
    variance    (a, b y, c (y^2 - 1/2))    a^2 = 3/8, b^2 = c^2 = 1/2
    histogram   one-hot over equal bins of [low, high]
    quantile    likewise

so that every record has R = 1. The weights minimise the largest error bar over all columns, at noise t in every sum of
n records. For the mean it is 2 t / n, where |mean of y| = 1. For the variance it is 4 t / n, where all |y| = 1 and are
equal. There the derivative by the three sums is (3/2, 2, 1) / n up to signs, and a^2 + b^2 + c^2 / 4 = 1 is the
constraint. The square is centred at 1/2, which doubles c. Our derivation.

Sensitivity. Adding or removing one record moves the sum by at most 1. A client's sum is projected onto the ball of
radius C, which makes no two sums more distant. So adding or removing a client, or any lie of one, moves it by at most
C. The sum is cut to the grid of 2^-f once, which `effective_noise_multiplier` counts.

Rounding. Vectors are rounded to 2^-40 record by record, and their sum is that of integers, exact for any number of
records. Weights leave room for that, so a rounded record has norm at most 1 as well. They also leave room for errors of
float64 in sum and projection, as C 2^f is below 2^31. Rounded to 2^-f record by record, all records of one value would
be off alike, and n of them by n times as much.

A cell that holds no finite number contributes nothing. It raises nothing either: an error would tell of a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.dp.checks import require_count
from precad.dp.queries.kinds import Kind

Values = NDArray[np.float64]
ROWS_AT_ONCE: Final = 4096
ROW_BITS: Final = 40
"""Records are on the grid of 2^-40, or on that of the sum where that is finer."""

_WEIGHTS: Final = {
    Kind.COUNT: (1.0,),
    Kind.MEAN: (math.sqrt(0.5), math.sqrt(0.5)),
    Kind.VARIANCE: (math.sqrt(0.375), math.sqrt(0.5), math.sqrt(0.5)),
}
_ROOM_BITS: Final = 6
"""Weights leave sqrt(k) 64ths of a step of the sum's grid: at most three in a hundred of themselves, at f = 0."""


def weights_on_grid(weights: Sequence[float], frac_bits: int) -> Values:
    """Return weights of norm 1 on the grid of records, (k,), with room for what is rounded after them."""
    bits = _row_bits(frac_bits)
    room = 1 - math.ldexp(math.sqrt(len(weights)), -min(frac_bits + _ROOM_BITS, bits))
    return np.ldexp(np.floor(np.ldexp(np.asarray(weights) * room, bits)), -bits)


def on_row_grid(exact: Values, frac_bits: int) -> Values:
    """Return records' vectors, (n, k), rounded to the grid of records beside a sum of so many fractional bits."""
    bits = _row_bits(frac_bits)
    return np.ldexp(np.rint(np.ldexp(exact, bits)), -bits)


def sum_of_rows(pieces: Iterable[Values], frac_bits: int, dim: int) -> Values:
    """Return the sum of vectors that `on_row_grid` gave, (k,): that of integers, in the end the nearest floats.

    pieces: (n_i, k) each, of at most 4096 vectors.
    """
    bits, total = _row_bits(frac_bits), [0] * dim
    for rows in pieces:
        steps = np.ldexp(rows, bits).astype(np.int64).sum(axis=0)
        total = [before + int(more) for before, more in zip(total, steps, strict=True)]
    return np.array([steps / (1 << bits) for steps in total])


def _row_bits(frac_bits: int) -> int:
    return max(frac_bits, ROW_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """One query's vectors. Raises ValueError for bounds out of order, or no bin."""

    kind: Kind
    low: float
    high: float
    frac_bits: int
    """f of the grid."""
    bins: int = 1
    """Equal bins of [low, high], where the kind has any."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and math.isfinite(self.high - self.low)):
            raise ValueError(f"low, high: expected finite numbers, found {self.low} and {self.high}")
        if not self.low < self.high:
            raise ValueError(f"low, high: expected low < high, found {self.low} and {self.high}")
        if not self.half_width > 0:  # 0/0 would make one record's number, and not another's, 2^63 steps of the grid
            raise ValueError(f"low, high: expected more than 5e-324 apart, found {self.low} and {self.high}")
        require_count("bins", self.bins, at_least=1)
        require_count("frac_bits", self.frac_bits)

    @property
    def dim(self) -> int:
        """Return k, the length of a record's vector."""
        return self.bins if self.kind.has_bins else len(_WEIGHTS[self.kind])

    @property
    def half_width(self) -> float:
        """Return what one of y is, in units of the column."""
        return (self.high - self.low) / 2

    @property
    def middle(self) -> float:
        """Return what y = 0 is, in units of the column."""
        return self.low + self.half_width

    @property
    def weights(self) -> Values:
        """Return the weight of each coordinate on the grid, (k,)."""
        if self.kind.has_bins or self.kind is Kind.COUNT:
            return np.ones(self.dim)
        return weights_on_grid(_WEIGHTS[self.kind], self.frac_bits)

    def scaled(self, values: Values) -> Values:
        """Return y of finite values, clipped to [-1, 1]. Shapes (n,)."""
        clipped = np.clip(values, self.low, self.high)
        return np.clip((clipped - self.middle) / self.half_width, -1.0, 1.0)

    def places(self, values: Values) -> NDArray[np.int64]:
        """Return the bin of each finite value, (n,)."""
        shares = (self.scaled(values) + 1) / 2
        return np.minimum((shares * self.bins).astype(np.int64), self.bins - 1)

    def rows(self, values: Values) -> Values:
        """Return the vector of each record, (n, k), each of norm at most 1.

        values: (n,), of any content. A cell that is no finite number makes a row of zeros.
        """
        is_number = np.isfinite(values)
        known = np.where(is_number, values, self.middle)
        return self._rows(known) * is_number[:, None]

    def total(self, values: Values) -> Values:
        """Return the sum of `rows`, (k,): the float nearest to each number."""
        if self.kind.has_bins:  # rows of thousands of bins would take much memory
            return np.bincount(self.places(values[np.isfinite(values)]), minlength=self.bins).astype(np.float64)
        starts = range(0, len(values), ROWS_AT_ONCE)
        pieces = (self.rows(values[start : start + ROWS_AT_ONCE]) for start in starts)
        return sum_of_rows(pieces, self.frac_bits, self.dim)

    def _rows(self, known: Values) -> Values:
        if self.kind.has_bins:
            one_hot: Values = (self.places(known)[:, None] == np.arange(self.bins)).astype(np.float64)
            return one_hot
        if self.kind is Kind.COUNT:
            return ((self.low <= known) & (known <= self.high)).astype(np.float64)[:, None]
        y = self.scaled(known)
        parts = [np.ones_like(y), y] if self.kind is Kind.MEAN else [np.ones_like(y), y, y * y - 0.5]
        return on_row_grid(np.stack(parts, axis=1) * self.weights, self.frac_bits)
