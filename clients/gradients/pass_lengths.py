"""How long passes are on a CPU, where their length may vary.

Few records then take a short pass, and many share long ones. Every length is tried at its first use, beside the tile
(`precad.clients.gradients.bit_exactness`): only those are taken that give a record the tile's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from precad.clients.gradients.tiles import Piece, packed


@dataclass(frozen=True, kw_only=True, slots=True)
class Variety:
    """Which lengths are tried, and how many records share a pass."""

    n_tile: int
    """The length that others are tried beside."""
    most: int
    """The longest. Half of it is the longest piece."""
    n_steps: int
    """Between one power of two and the next there are so many lengths."""
    least_step: int
    is_lean: bool
    """Whether a pass is no longer than the largest client has records, so that it takes little more memory than this
    one alone."""

    def within(self, n_fit: int) -> tuple[int, int]:
        """Return the tile, and the longest pass, where no more records fit in one."""
        n_tile = min(self.n_tile, n_fit)
        return n_tile, max(n_tile, min(self.most, n_fit) // self.least_step * self.least_step)


OF_ADAPTERS: Final = Variety(n_tile=12, most=96, n_steps=8, least_step=2, is_lean=True)
"""At most an eighth of a pass is padding, beyond the shortest. Longer passes gain little."""
OF_MODELS: Final = Variety(n_tile=32, most=256, n_steps=2, least_step=8, is_lean=False)
"""At most a third of a pass is padding, beyond the shortest: to try more lengths takes longer than it saves within few
rounds."""


class PassLengths:
    """The lengths of one model's passes."""

    def __init__(self, n_tile: int, most: int, is_as_in_tile: Callable[[int], bool], variety: Variety) -> None:
        """n_tile: the length that always does. most: no pass is longer; as many as a tile where lengths do not vary.

        is_as_in_tile: whether a pass of so many records gives each of them the bits that a tile gives.
        """
        self.n_tile, self.most, self._try, self._variety = n_tile, most, is_as_in_tile, variety
        self._tried: dict[int, bool] = {n_tile: True}

    def dealt(self, sizes: Sequence[int]) -> Iterator[tuple[list[Piece], int]]:
        """Yield the pieces of each pass, and its length with padding.

        A client's own size cuts its pieces, whoever else is there.
        """
        room, n_piece = self.n_tile, self.n_tile
        n_most = max(sizes, default=0) if self._variety.is_lean else sum(sizes)
        if self.most > self.n_tile and n_most > self.n_tile and self._does(self.most // 2):
            room, n_piece = min(self.most, n_most), max(self.n_tile, self.most // 2)
        for tile in packed(sizes, room, n_piece):
            n_rows = self.rows_of(sum(map(len, tile)))
            if n_rows is not None:
                yield tile, n_rows
                continue
            for piece in tile:  # each is no longer than a length that does
                yield [piece], self.rows_of(len(piece)) or self.n_tile

    def rows_of(self, n_records: int) -> int | None:
        """Return the length of a pass for so many records; None where none does."""
        if self.most == self.n_tile:
            return self.n_tile
        step = max(self._variety.least_step, 2 ** (n_records.bit_length() - 1) // self._variety.n_steps)
        own = min(self.most, max(self.n_tile // 2, -(-n_records // step) * step))
        lengths = (own, self.n_tile, self.most // 2)
        return next((n_rows for n_rows in lengths if n_rows >= n_records and self._does(n_rows)), None)

    def _does(self, n_rows: int) -> bool:
        if n_rows not in self._tried:
            self._tried[n_rows] = self._try(n_rows)
        return self._tried[n_rows]
