"""Elements of F_p, 56 bits each, in words of 64 bits: eight elements are seven words. Compiled by Numba.

That they are below p is counted, not branched on. The arithmetic is that of `precad.mpc.kernels.prime_field`.
"""

from __future__ import annotations

import numpy as np
from numba import types

from precad.mpc.kernels.machine_code import READ, WRITE, compiled
from precad.mpc.kernels.prime_field import B8, MASK56, ZERO, Words, mask
from precad.mpc.kernels.vectors import TOGETHER, unpack_groups

_U64 = types.uint64
WORDS = 7
"""Words of `TOGETHER` elements, a group."""


@compiled(_U64(READ, WRITE))
def unpack_one(words: Words, to: Words) -> np.uint64:
    """Unpack one group. Return how many elements are p or above. Shapes: (7,), (8,)."""
    to[0] = words[0] & MASK56
    for k in range(1, WORDS):
        to[k] = ((words[k - 1] >> np.uint64(64 - 8 * k)) | (words[k] << np.uint64(8 * k))) & MASK56
    to[WORDS] = words[WORDS - 1] >> B8
    return mask(to)


@compiled(_U64(READ, WRITE))
def unpack(packed: Words, out: Words) -> np.uint64:
    """Unpack groups. Return how many elements are p or above. Shapes: (7 g,), (8 g,).

    The last group is unpacked by itself, as others are read with the word behind them.
    """
    last, refused = out.size // TOGETHER - 1, np.zeros(TOGETHER, dtype=np.uint64)
    if last < 0:
        return ZERO
    unpack_groups(packed, out, last, refused)
    total = unpack_one(packed[WORDS * last :], out[TOGETHER * last :])
    for k in range(TOGETHER):
        total += refused[k]
    return total


@compiled(types.void(READ, WRITE))
def pack(elements: Words, out: Words) -> None:
    """Pack groups. Shapes: (8 g,), (7 g,)."""
    for group in range(elements.size // TOGETHER):
        start, to = TOGETHER * group, out[WORDS * group : WORDS * (group + 1)]
        for k in range(WORDS):
            to[k] = (elements[start + k] >> np.uint64(8 * k)) | (elements[start + k + 1] << np.uint64(56 - 8 * k))
