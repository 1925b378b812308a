"""The inner loops of the local step, compiled by Numba. `precad.mpc.local.cpu_engine` loads this module when it is
first needed.

`combine` is one pass over a tile of one client: both inner products, the sum of shares, and the signed share. `scatter`
is the expensive half of 64 ternary rows. Row j is the sum of the signed shares y_i whose word u_i has bit j. The loop
does not add y_i to the rows that it belongs to, 32 on average. It adds y_i to one of 256 buckets for each of the eight
bytes of u_i. Afterwards row 8 g + j is the sum of the buckets of byte g whose index has bit j. That is eight additions
per coordinate and client, with no table to build and no bit matrix to transpose. Source: Pippenger's bucket method.

Four clients side by side share each bucket's address, and their four words are added at once. That takes 0.9 ns per
coordinate and client instead of 2.6. Numba vectorises no such store by itself, hence `add_four`, in LLVM's portable
vector type.

Signatures are given, so that all is compiled or read (`precad.mpc.kernels.machine_code`) when the module is loaded,
and no call waits.

Everything is uint64: Numba, like NumPy, would turn uint64 with int64 into float64. Overflow wraps, as the ring does.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from precad.mpc.kernels.lanes import BYTE_VALUES, BYTES, LANES
from precad.mpc.kernels.machine_code import READ, READ_2D, READ_3D, WRITE, WRITE_2D, compiled
from precad.mpc.kernels.wide import add_four

Words = NDArray[np.uint64]

ZERO, ONE, BYTE_BITS, BYTE_MASK = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(255)


@compiled(types.UniTuple(types.uint64, 2)(READ, WRITE, READ, WRITE, types.uint64))
def combine(
    opened: Words, mask: Words, sign_words: Words, share_sum: Words, opened_mask: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Return (<b, a>, <b, b>) of one tile.

    Adds the share x = a + (b & opened_mask) to `share_sum`, replaces a by s o x.

    opened_mask: all ones at server A, whose share is b + a_A; zero at B, whose share is a_B.
    Shapes: (m,), sign_words (ceil(m / 64),): bit i set for s_i = -1.
    """
    by_mask = by_opened = ZERO
    for block in range(sign_words.size):
        signs, start = sign_words[block], 64 * block
        for k in range(min(64, opened.size - start)):
            i = start + k
            b, a = opened[i], mask[i]
            by_mask += b * a
            by_opened += b * b
            x = a + (b & opened_mask)
            share_sum[i] += x
            negative = ZERO - ((signs >> np.uint64(k)) & ONE)
            mask[i] = (x ^ negative) - negative
    return by_mask, by_opened


@compiled(types.void(READ, READ, WRITE))
def scatter_one(row_words: Words, signed: Words, buckets: Words) -> None:
    """Add each y_i to its eight buckets. Shapes: row_words and signed (m,), buckets (8 * 256,)."""
    for i in range(row_words.size):
        word, y = row_words[i], signed[i]
        for byte in range(BYTES):
            buckets[np.uint64(byte * BYTE_VALUES) + (word & BYTE_MASK)] += y
            word >>= BYTE_BITS


@compiled(types.void(READ, READ_2D, WRITE))
def scatter_four(row_words: Words, signed: Words, buckets: Words) -> None:
    """Do `scatter_one` for four clients. Shapes: row_words (m,), signed (4, >= m), buckets (8 * 256 * 4,)."""
    for i in range(row_words.size):
        word = row_words[i]
        y0, y1, y2, y3 = signed[0, i], signed[1, i], signed[2, i], signed[3, i]
        for byte in range(BYTES):
            first = (np.uint64(byte * BYTE_VALUES) + (word & BYTE_MASK)) * np.uint64(LANES)
            add_four(buckets, first, y0, y1, y2, y3)
            word >>= BYTE_BITS


@compiled(types.void(READ_3D, WRITE, WRITE_2D))
def add_up(buckets: Words, folded: Words, rows: Words) -> None:
    """Add up row 8 g + j of each lane: the sum of the buckets of byte g whose index has bit j.

    The loop begins at the highest bit. The upper half of the buckets adds up to the bit's row. It is then added to the
    lower half, where it counts for the bits below. Shapes: (8, 256, lanes), scratch (256 * lanes,), rows (lanes, 64).
    """
    lanes = buckets.shape[2]
    for byte in range(BYTES):
        of_byte = buckets[byte].reshape(-1)
        for i in range(of_byte.size):
            folded[i] = of_byte[i]
        for bit in range(7, -1, -1):
            half = (1 << bit) * lanes
            for lane in range(lanes):
                total = ZERO
                for i in range(half + lane, 2 * half, lanes):
                    total += folded[i]
                rows[lane, 8 * byte + bit] = total
            for i in range(half):
                folded[i] += folded[half + i]
