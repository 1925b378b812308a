"""Opening a vector of two additive shares: both servers send theirs and add, piece by piece, one round.

Only a piece is held twice of a vector that may be most of a server's memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import PIECE_BYTES, Channel
from precad.mpc.ring import RingArray

PIECE_WORDS = PIECE_BYTES // ring.WORD_BYTES


def pieces(dim: int) -> Iterator[slice]:
    """Yield consecutive slices of at most PIECE_WORDS that cover range(dim)."""
    return (slice(start, min(start + PIECE_WORDS, dim)) for start in range(0, dim, PIECE_WORDS))


def open_in_place(share: RingArray, label: str, channel: Channel) -> None:
    """Open x = [x]_A + [x]_B, (d,): the share becomes the sum, at both servers. Raises MalformedMessageError."""
    swapped = channel.exchange_pieces(label, pieces_of_sum(share))
    for piece, received in zip(pieces(share.size), swapped, strict=True):
        share[piece] += ring.from_bytes(received, n_words=piece.stop - piece.start)


def pieces_of_sum(noisy_sum: RingArray) -> Iterator[bytes]:
    """Yield a vector, (d,), as it travels: an opened sum when the servers meet, or a share."""
    return (ring.to_bytes(noisy_sum[piece]) for piece in pieces(noisy_sum.size))


def fill_sum(noisy_sum: RingArray, received: Iterator[bytes]) -> None:
    """Write what `pieces_of_sum` yielded, (d,). Raises MalformedMessageError."""
    for piece, data in zip(pieces(noisy_sum.size), received, strict=True):
        noisy_sum[piece] = ring.from_bytes(data, n_words=piece.stop - piece.start)


def norm(opened: RingArray) -> float:
    """Return the L2 norm of an opened vector of signed integers, (d,), to a relative 2^-20 for every d below 2^32."""
    tiles = (opened[piece].astype(np.float64) for piece in pieces(opened.size))
    return math.sqrt(math.fsum(float(np.dot(tile, tile)) for tile in tiles))
