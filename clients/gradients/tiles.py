"""How the records of many clients are dealt to passes: every client's in pieces, several pieces a tile.

A piece is cut by its own client's number of records alone, never by what lies beside it. A client's sums are then
added up in the same order whoever else is there.
"""

from __future__ import annotations

from collections import deque
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


def packed(sizes: Sequence[int], n_tile: int, n_piece: int | None = None) -> Iterator[list[Piece]]:
    """Yield tiles of at most `n_tile` records: full pieces first, then what is left over, the longest first.

    The pieces of a client come in order whoever else is there.

    sizes: of the clients, in records. n_piece: records of a full piece; None for a tile's. It may be more than a tile's
    where no client has more than those.
    """
    longest = n_tile if n_piece is None else n_piece
    waiting: dict[int, deque[Piece]] = {}
    for client, size in enumerate(sizes):
        for start in range(0, size, longest):
            piece = Piece(client, start, min(start + longest, size))
            waiting.setdefault(len(piece), deque()).append(piece)
    while waiting:
        tile, room = [], n_tile
        for length in sorted(waiting, reverse=True):
            for _ in range(min(room // length, len(waiting[length]))):
                tile.append(waiting[length].popleft())
                room -= length
            if not waiting[length]:
                del waiting[length]
            elif length == longest:
                break  # what is left over of a client comes after its full pieces
        yield tile


def places(tile: Sequence[Piece]) -> Segments:
    """Return where the pieces lie within their tile, one after the other."""
    stops, stop = [], 0
    for piece in tile:
        stop += len(piece)
        stops.append(stop)
    return [slice(stop - len(piece), stop) for piece, stop in zip(tile, stops, strict=True)]
