"""Buckets that the loops of the local step add into, for whoever allocates them. Imports no Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LANES = 4
"""Clients whose rows are added up side by side: their buckets, 64 KiB, stay in the first two levels of cache."""
BYTES, BYTE_VALUES = 8, 256

_LINE_WORDS = 8
"""Words in a line of the cache."""


def zero_buckets(lanes: int) -> NDArray[np.uint64]:
    """Return zeros, (8, 256, lanes), from the start of a line of the cache on.

    Four lanes are added at once. Where NumPy puts them across two lines, rows take 1.4 times as long.
    """
    n_words = BYTES * BYTE_VALUES * lanes
    room = np.zeros(n_words + _LINE_WORDS - 1, dtype=np.uint64)
    start = -(room.ctypes.data // room.itemsize) % _LINE_WORDS
    return room[start : start + n_words].reshape(BYTES, BYTE_VALUES, lanes)
