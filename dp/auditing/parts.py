"""Parts of all observations, over which noise and uploads are summed: a fault of some rounds hides in a total of all.

A part is some rounds at some coordinates. Rounds: all, each alone, every k-th, halves, quarters, eighths. Coordinates:
all, every other one, halves, quarters, eighths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_APART: Final = 8
"""Largest k of "every k-th"."""
_PIECES: Final = (2, 4, 8)


class Parts:
    """Parts of a table of so many rounds and canaries."""

    def __init__(self, rounds: int, canaries: int) -> None:
        self._rounds: Final = [
            *(slice(t, t + 1) for t in range(rounds)),
            slice(0, rounds),
            *(slice(first, rounds, k) for k in range(2, min(_MOST_APART, rounds - 1) + 1) for first in range(k)),
            *_pieces(rounds),
        ]
        self._canaries: Final = self.pieces(canaries)

    @staticmethod
    def pieces(n: int) -> list[slice]:
        """Return all of n, every other one, halves, quarters and eighths."""
        return [slice(0, n), *(slice(first, n, 2) for first in range(2) if n > 2), *_pieces(n)]

    @staticmethod
    def words(what: str, part: slice) -> str:
        """Return in words which of `what` a part has."""
        if part.stop - part.start == 1:
            return f"{what} {part.start}"
        return f"{what} {part.start} to {part.stop - 1}{f', one of {part.step}' if part.step else ''}"

    def sums(self, values: Array) -> Array:
        """Return the sum of each part, (rounds' parts, canaries' parts). values: (T, m)."""
        of_rounds = np.stack([values[:, part].sum(axis=1) for part in self._canaries], axis=1)
        rest = self._rounds[len(of_rounds) :]
        return np.concatenate([of_rounds, *(of_rounds[part].sum(axis=0, keepdims=True) for part in rest)])

    def where(self, place: Sequence[int | np.intp]) -> str:
        """Return a part in words."""
        rounds, canaries = self._rounds[place[0]], self._canaries[place[1]]
        return f"{self.words('round', rounds)} at {self.words('canary', canaries)}"


def _pieces(n: int) -> Iterator[slice]:
    for count in _PIECES:
        if n >= 2 * count:
            edges = [n * i // count for i in range(count + 1)]
            yield from map(slice, edges, edges[1:])
