"""Z_2^64 on int64 arrays: the ring that every share lives in.

NumPy's int64 arrays wrap silently, which is exactly addition and multiplication modulo 2^64 in two's complement. A
value and its centred representative in [-2^63, 2^63) are the same word. Scalars are kept as Python integers and reduced
by `centred`, because NumPy warns when a *scalar* wraps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.mpc.errors import MalformedMessageError
from precad.mpc.parameters import MODULUS

WORD_BYTES, WORD_BITS = 8, 64

RingArray: TypeAlias = NDArray[np.int64]

TILE = 1 << 14
"""Coordinates per step of everything that grows with d: 128 KiB a vector. So a step's working set stays in the
second-level cache of one core, whatever d is. A multiple of 64, so that a tile begins with a word of signs."""


def tiles(dim: int, at_once: int = 1) -> Iterator[slice]:
    """Yield consecutive slices of at most `at_once` * TILE coordinates that cover range(dim)."""
    step = at_once * TILE
    return (slice(start, min(start + step, dim)) for start in range(0, dim, step))


def spans(dim: int, n: int) -> list[slice]:
    """Return at most n consecutive slices that cover range(dim), at least one, of whole tiles but for the last tile."""
    n_tiles = max(1, -(-dim // TILE))
    n_spans = max(1, min(n, n_tiles))
    ends = [TILE * (n_tiles * i // n_spans) for i in range(n_spans + 1)]
    return [slice(start, min(stop, dim)) for start, stop in pairwise(ends)]


def centred(value: int) -> int:
    """Return the representative of `value` modulo 2^64 in [-2^63, 2^63)."""
    return (value + (1 << 63)) % MODULUS - (1 << 63)


def dot(x: RingArray, y: RingArray) -> int:
    """Return <x, y> modulo 2^64, centred. Shapes: x and y both (d,)."""
    return int(np.dot(x, y))


def add_by_layer(totals: RingArray, products: RingArray, ends: RingArray, tile: slice) -> None:
    """Add the sum of each layer's part of a tile of products to the layer's total, modulo 2^64. In place.

    Shapes: totals and ends (L,), layer l ends before coordinate ends[l]; products (m,), of the tile.
    """
    first, last = np.searchsorted(ends, (tile.start, tile.stop - 1), side="right")
    starts = np.concatenate([[0], ends[first:last] - tile.start])
    totals[first : last + 1] += np.add.reduceat(products, starts)


def to_bytes(x: RingArray) -> bytes:
    """Return little-endian words in C order: 8 bytes per element."""
    return np.ascontiguousarray(x, dtype="<i8").tobytes()


def from_bytes(data: bytes | bytearray | memoryview, *, n_words: int) -> RingArray:
    """Return the (n_words,) array that `to_bytes` wrote: it lies where `data` lies, read-only where that is.

    Raises MalformedMessageError on another length.
    """
    if len(data) != n_words * WORD_BYTES:
        raise MalformedMessageError(f"ring elements: expected {n_words * WORD_BYTES} bytes, found {len(data)}")
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)
