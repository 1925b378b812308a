"""Test that no noise is used twice: in two rounds, by both servers, or at two coordinates of a round.

The noise of a round at the canaries' coordinates is a vector of m independent draws of mean 0. The uncentred
correlation r of two such vectors has a known law: r sqrt(m - 1) / sqrt(1 - r^2) is Student's with m - 1 degrees of
freedom. So have the T draws at one coordinate and those at another. A vector that repeats itself after k coordinates is
found by all pairs so far apart. Pieces of k coordinates go by turns to one side and to the other, so that both are
independent. So are rounds, each of which has a part of an earlier one's noise. A stream that is read again from another
place is found by two rounds, one of which is shifted. What they have in common are independent draws, too.

The largest of all pairs is judged at the test's level over the number of pairs. A chance of each that adds up:
Bonferroni.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from precad.dp.checks import require_delta

Array = NDArray[np.float64]

MOST_LAGS: Final = 2048
"""Distances at which a vector is compared with itself, at most: the shortest ones."""
_MOST_SHIFTED: Final = 1 << 25
"""Numbers of all shifted pairs of rounds, about, at most: the nearest rounds."""
_LEAST: Final = 7
"""Degrees of freedom, at least: on a coarse grid, shorter vectors of independent draws are often multiples."""
_ROWS: Final = 256
"""Coordinates at a time of a table of all pairs of them."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """Hold the pair of noise vectors that agree most."""

    correlation: float
    where: str
    """Which noise it is, in words."""
    p_value: float
    """Chance of a pair so correlated, times the number of pairs."""
    is_found: bool

    def __str__(self) -> str:
        return f"a correlation of {self.correlation:.3f} in the noise {self.where}"


@dataclass(frozen=True, slots=True)
class _Pair:
    """The most correlated of so many pairs of vectors."""

    correlation: float
    where: str
    n_pairs: int
    freedom: int

    @property
    def chance(self) -> float:
        """Return the chance of one pair so correlated."""
        left = max(1 - self.correlation**2, 1e-300)
        return 2 * float(stdtr(self.freedom, -abs(self.correlation) * math.sqrt(self.freedom / left)))


def repeated_noise(residuals: Array, own_noise: Array | None, alpha: float) -> Repetition:
    """Return the most correlated pair, found where it has a chance below alpha with fresh noise.

    residuals: (T, m), of all rounds, and of all coordinates, against one another.
    own_noise: (T, m), round by round against the residuals, also across rounds. None where the view has none.
    """
    require_delta(alpha)
    unit = _unit(residuals)
    found = [*_of_rounds(unit), *_of_coordinates(_unit(residuals.T)), *_of_distances(residuals, "canaries")]
    found += [*_of_distances(residuals.T, "rounds"), *_of_shifts(residuals)]
    if own_noise is not None:
        found += _of_both(own_noise, residuals)
    found = [pair for pair in found if pair.n_pairs and pair.freedom >= _LEAST]
    if not found:
        return Repetition(0.0, "of rounds 0 and 0", 1.0, is_found=False)
    best, count = min(found, key=lambda pair: pair.chance), sum(pair.n_pairs for pair in found)
    return Repetition(best.correlation, best.where, min(1.0, best.chance * count), best.chance * count < alpha)


def _of_rounds(unit: Array) -> Iterator[_Pair]:
    r, first, second = _largest(np.triu(unit @ unit.T, k=1))
    yield _Pair(r, f"of rounds {first} and {second}", len(unit) * (len(unit) - 1) // 2, unit.shape[1] - 1)


def _of_both(own: Array, residuals: Array) -> Iterator[_Pair]:
    """Yield the most correlated pair of rounds of two servers, and the coordinate at which they agree most."""
    rounds, m = own.shape
    r, ours, theirs = _largest(_unit(own) @ _unit(residuals).T)
    where = f"of both servers in round {ours}" if ours == theirs else f"of rounds {ours} and {theirs} of two servers"
    yield _Pair(r, where, rounds * rounds, m - 1)
    r, _, place = _largest((_unit(own.T) * _unit(residuals.T)).sum(axis=1)[None])
    yield _Pair(r, f"of both servers at canary {place}", m, rounds - 1)


def _of_coordinates(unit: Array) -> Iterator[_Pair]:
    """Yield the most correlated pair of coordinates of every block of them, over all rounds."""
    m, rounds = unit.shape
    for start in range(0, m, _ROWS):
        block = unit[start : start + _ROWS] @ unit[start:].T
        r, first, second = _largest(np.triu(block, k=1))
        n_pairs = sum(m - 1 - j for j in range(start, min(start + _ROWS, m)))
        yield _Pair(r, f"of canaries {start + first} and {start + second}", n_pairs, rounds - 1)


def _of_shifts(residuals: Array) -> Iterator[_Pair]:
    """Yield the most correlated pair of rounds, one shifted by up to half of the coordinates, for each distance."""
    rounds, m = residuals.shape
    if m < 2:
        return
    half = np.arange(1, m // 2 + 1)
    lags, size = np.concatenate([-half[::-1], half]), 1 << (2 * m - 1).bit_length()
    overlaps = m - np.abs(lags)
    waves = np.fft.rfft(residuals, size)
    until = np.pad(np.cumsum(np.square(residuals), axis=1), ((0, 0), (1, 0)))
    starts = np.maximum(lags, 0)
    of_later = until[:, starts + overlaps] - until[:, starts]
    of_earlier = of_later[:, ::-1]
    for distance in range(1, min(rounds - 1, _MOST_SHIFTED // (rounds * size)) + 1):
        products = np.fft.irfft(waves[distance:] * waves[:-distance].conj(), size)[:, lags % size]
        lengths = np.sqrt(of_later[distance:] * of_earlier[:-distance])
        table = np.clip(np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0), -1.0, 1.0)
        _, t, place = _largest(table * np.sqrt(overlaps / m))
        where = f"of rounds {t} and {t + distance}, {abs(int(lags[place]))} canaries apart"
        yield _Pair(float(table[t, place]), where, table.size, int(overlaps[place]) - 1)


def _of_distances(residuals: Array, what: str) -> Iterator[_Pair]:
    """Yield the correlation of columns at each distance, over all rows."""
    rounds, m = residuals.shape
    columns, places = np.ascontiguousarray(residuals.T), np.arange(m)
    squares = np.square(columns).sum(axis=1)
    for distance in range(1, min(m - 1, MOST_LAGS) + 1):
        one = places[: m - distance][places[: m - distance] // distance % 2 == 0]
        length = math.sqrt(float(squares[one].sum()) * float(squares[one + distance].sum()))
        r = float(np.vdot(columns[one], columns[one + distance])) / length if length > 0 else 0.0
        yield _Pair(max(-1.0, min(1.0, r)), f"of {what} {distance} apart", 1, rounds * len(one) - 1)


def _largest(table: Array) -> tuple[float, int, int]:
    """Return the entry that is farthest from 0, within -1 and 1, and its place."""
    row, column = (int(i) for i in np.unravel_index(int(np.abs(table).argmax()), table.shape))
    return max(-1.0, min(1.0, float(table[row, column]))), row, column


def _unit(rows: Array) -> Array:
    """Return each row over its length; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))
