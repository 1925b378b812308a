"""How the records of many clients are dealt to passes of one shape: every client's in pieces, several pieces a tile.

A piece is cut by its own client's number of records alone, never by what lies beside it. A client's sums are then
added up in the same order whoever else is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precad.clients.gradients.layers import Segments


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one client that lie in one tile."""

    client: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def packed(sizes: Sequence[int], n_tile: int) -> Iterator[list[Piece]]:
    """Yield tiles of at most `n_tile` records: full pieces alone, then what is left over of clients, the longest first.

    sizes: of the clients, in records. A client is in a tile once at most, and its pieces come in order.
    """
    left_over: dict[int, list[Piece]] = {}
    for client, size in enumerate(sizes):
        n_full = size // n_tile
        for i in range(n_full):
            yield [Piece(client, i * n_tile, (i + 1) * n_tile)]
        if rest := size - n_full * n_tile:
            left_over.setdefault(rest, []).append(Piece(client, n_full * n_tile, size))
    while left_over:
        tile, room = [], n_tile
        for length in sorted(left_over, reverse=True):
            taken = left_over[length][: room // length]
            del left_over[length][: len(taken)]
            if not left_over[length]:
                del left_over[length]
            tile += taken
            room -= length * len(taken)
        yield tile


def places(tile: Sequence[Piece]) -> Segments:
    """Return where the pieces lie within their tile, one after the other."""
    stops, stop = [], 0
    for piece in tile:
        stop += len(piece)
        stops.append(stop)
    return [slice(stop - len(piece), stop) for piece, stop in zip(tile, stops, strict=True)]
