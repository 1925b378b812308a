"""How long passes are whose length may vary: those of adapters on a CPU.

A short client then takes a short pass and little memory, and records of a large one share long passes. Every length
is tried at its first use, beside the tile (`precad.clients.gradients.bit_exactness`): only those are taken that give a
record the tile's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from precad.clients.gradients.tiles import Piece, packed

_STEPS: Final = 8
"""Between one power of two and the next there are so many lengths: an eighth of a pass is padding at most."""
_LEAST_STEP: Final = 2


class PassLengths:
    """The lengths of one model's passes."""

    def __init__(self, n_tile: int, most: int, is_as_in_tile: Callable[[int], bool]) -> None:
        """n_tile: the length that always does. most: no pass is longer; as many as a tile where lengths do not vary.

        is_as_in_tile: whether a pass of so many records gives each of them the bits that a tile gives.
        """
        self.n_tile, self.most, self._try = n_tile, most, is_as_in_tile
        self._tried: dict[int, bool] = {n_tile: True}

    def dealt(self, sizes: Sequence[int]) -> Iterator[tuple[list[Piece], int]]:
        """Yield the pieces of each pass, and its length with padding.

        No pass is longer than the largest client has records, so that it takes little more memory than this one alone.
        A client's own size cuts its pieces, whoever else is there.
        """
        room, n_piece = self.n_tile, self.n_tile
        if max(sizes, default=0) > self.n_tile and self._does(self.most // 2):
            room, n_piece = min(self.most, max(sizes)), max(self.n_tile, self.most // 2)
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
        step = max(_LEAST_STEP, 2 ** (n_records.bit_length() - 1) // _STEPS)
        own = min(self.most, max(self.n_tile // 2, -(-n_records // step) * step))
        lengths = (own, self.n_tile, self.most // 2)
        return next((n_rows for n_rows in lengths if n_rows >= n_records and self._does(n_rows)), None)

    def _does(self, n_rows: int) -> bool:
        if n_rows not in self._tried:
            self._tried[n_rows] = self._try(n_rows)
        return self._tried[n_rows]
