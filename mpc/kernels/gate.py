"""The loops of the native gate and of the top bits, compiled by Numba. `precad.mpc.kernels.loading` loads them when
first needed.

They compute on few words, a kilobyte or two per client, so what they save is not arithmetic but a hundred calls of
NumPy. Bits lie in planes of `lanes` bytes (`precad.mpc.tuples.correlations`). Signatures are given, for the reasons in
`precad.mpc.kernels.local`.

Every loop and every address depends on shapes alone, and no branch on a bit: what is secret is only ever an operand.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from precad.mpc.kernels.machine_code import READ, READ_2D, WRITE_2D, compiled
from precad.mpc.tuples.correlations import Planes

Words = NDArray[np.uint64]
Indices = NDArray[np.intp]

ZERO, ONE, BYTE_BITS = np.uint64(0), np.uint64(1), 8

_INDICES = types.Array(types.intp, 1, "C", readonly=True)
_PLANE = types.Array(types.uint8, 1, "C", readonly=True)
_PLANES = types.Array(types.uint8, 2, "C", readonly=True)
_BLOCKS = types.Array(types.uint8, 3, "C", readonly=True)
_WRITE_PLANE = types.Array(types.uint8, 1, "C")
_WRITE_PLANES = types.Array(types.uint8, 2, "C")
_WRITE_BLOCKS = types.Array(types.uint8, 3, "C")


@compiled(types.void(READ, types.uint64, _WRITE_BLOCKS))
def monomials(words: Words, pad: np.uint64, products: Planes) -> None:
    """Return the product over each non-empty set S of a block's bits, in products[S - 1]. Shape: (2^k - 1, s, lanes).

    Bit i of block b is bit k b + i of word << pad: words of fewer bits are shifted up, since zeros carry nothing.
    """
    n_sets, n_blocks, lanes = products.shape
    block_bits = 0
    while 1 << block_bits <= n_sets:
        block_bits += 1
    for i in range(block_bits):
        for block in range(n_blocks):
            shift, plane = np.uint64(block_bits * block + i), products[(1 << i) - 1, block]
            for lane in range(lanes):
                byte, first = ZERO, BYTE_BITS * lane
                for w in range(min(BYTE_BITS, words.size - first)):
                    byte |= (((words[first + w] << pad) >> shift) & ONE) << np.uint64(w)
                plane[lane] = byte
        for lower in range(1, 1 << i):
            for block in range(n_blocks):
                for lane in range(lanes):
                    products[(1 << i) + lower - 1, block, lane] = (
                        products[(1 << i) - 1, block, lane] & products[lower - 1, block, lane]
                    )


@compiled(types.void(_BLOCKS, _BLOCKS, _INDICES, _INDICES, types.intp, _BLOCKS, _WRITE_BLOCKS))
def add_pairs(
    of_a: Planes, of_b: Planes, in_a: Indices, in_b: Indices, n_generate: int, pairs: Planes, totals: Planes
) -> None:
    """Add (of_a[in_a[i]] & of_b[in_b[i]]) ^ pairs[i] to each block's g for the first n_generate i, then to its p.

    Shapes: of_a and of_b (2^k - 1, s, lanes), pairs (n_pairs, s, lanes), totals (s, 2, lanes).
    """
    for i in range(in_a.size):
        a, b, share, which = of_a[in_a[i]], of_b[in_b[i]], pairs[i], 0 if i < n_generate else 1
        for block in range(share.shape[0]):
            for lane in range(share.shape[1]):
                totals[block, which, lane] ^= (a[block, lane] & b[block, lane]) ^ share[block, lane]


@compiled(types.void(_BLOCKS, _BLOCKS, _PLANES, types.boolean, _WRITE_PLANES, _WRITE_PLANES, _WRITE_PLANE))
def join(
    opened: Planes, masks: Planes, subsets: Planes, is_a: bool, carry_in: Planes, factors: Planes, total: Planes
) -> None:
    """Compute `precad.mpc.gate.native_gate._join`.

    Shapes: opened and masks (s, 2, lanes), subsets (n_subsets, lanes), total (lanes,).

    Scratch: carry_in (s + 1, lanes), its first plane zero; factors (2^s, lanes).
    """
    n_blocks, _, lanes = masks.shape
    for j in range(n_blocks):
        for x in range(lanes):
            carry_in[j + 1, x] = opened[j, 0, x] ^ (opened[j, 1, x] & carry_in[j, x])
    for x in range(lanes):
        total[x] = carry_in[n_blocks, x] if is_a else 0
        factors[0, x] = 255
    start, n_sets = 0, 1
    for j in range(n_blocks - 1, -1, -1):
        of_propagate = start + n_sets - 1
        for chosen in range(n_sets):
            factor = factors[chosen]
            generate = masks[j, 0] if chosen == 0 else subsets[start + chosen - 1]
            propagate = generate  # of block 0, into which nothing is carried
            if j > 0:
                propagate = masks[j, 1] if chosen == 0 else subsets[of_propagate + chosen - 1]
            with_it, below = factors[n_sets + chosen], opened[j, 1]
            for x in range(lanes):
                f = factor[x]
                total[x] ^= f & (generate[x] ^ (carry_in[j, x] & propagate[x]))
                with_it[x] = f
                factor[x] = f & below[x]
        start = of_propagate + n_sets - 1
        n_sets *= 2


@compiled(types.void(READ_2D, _INDICES, types.uint64, _PLANE, READ, types.boolean, types.uint64, WRITE_2D))
def top_shares(
    words: Words,
    columns: Indices,
    n_bits: np.uint64,
    opened: Planes,
    bits: Words,
    is_a: bool,
    mask: np.uint64,
    out: Words,
) -> None:
    """Write +-(its top bits and the carry into them) & mask of each named column into the same column of `out`: + at A.

    The carry is o + (1 - 2 o) r in additive shares, with o the opened bit and r the dealt one.
    Shapes: words and out (n, w), opened (ceil(m / 8),) and bits (m,) with m = n * columns.size, client by client.
    """
    at = 0
    for i in range(words.shape[0]):
        for column in columns:
            o = (np.uint64(opened[at // BYTE_BITS]) >> np.uint64(at % BYTE_BITS)) & ONE
            negated = (bits[at] ^ (ZERO - o)) + o
            top = (words[i, column] >> n_bits) + negated
            out[i, column] = (top + o if is_a else ZERO - top) & mask
            at += 1
