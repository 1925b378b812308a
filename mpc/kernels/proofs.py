"""The loops of mode `proved`, compiled by Numba: the servers' pass over the shares.

The arithmetic is that of `precad.mpc.kernels.prime_field`. The buckets of the rows are those of
`precad.mpc.kernels.local`, folded after each tile, as a bucket has room for 254 elements. No branch and no address
depends on an element. Source: docs/reference/protocol-v2.md, sections 6 and 8.
"""

from __future__ import annotations

import numpy as np
from numba import types

from precad.mpc.kernels.lanes import BYTE_VALUES, BYTES, LANES
from precad.mpc.kernels.local import BYTE_BITS, BYTE_MASK, scatter_one
from precad.mpc.kernels.machine_code import READ, READ_2D, WRITE, WRITE_2D, compiled
from precad.mpc.kernels.prime_field import (
    B28,
    ONE,
    TWO_P,
    ZERO,
    P,
    Words,
    canonical,
    fold,
    joined,
    multiply,
    two_products,
)
from precad.mpc.kernels.vectors import TOGETHER, VECTORS_PER_BLOCK, limb_products
from precad.mpc.kernels.wide import add_four
from precad.mpc.ring import TILE

_U64 = types.uint64
_SIZES, _CONSTANTS = types.UniTuple(types.int64, 4), types.UniTuple(_U64, 2)


@compiled(types.void(WRITE, READ))
def apply_signs(share: Words, sign_words: Words) -> None:
    """Replace each x by s x, in 0..p. Bit i of the signs is set for s_i = -1. Shapes: (m,), (ceil(m / 64),)."""
    for block in range(sign_words.size):
        signs, start = sign_words[block], 64 * block
        for k in range(min(64, share.size - start)):
            negative = ZERO - ((signs >> np.uint64(k)) & ONE)
            share[start + k] = (share[start + k] ^ negative) - negative + (P & negative)


@compiled(types.void(WRITE))
def fold_all(words: Words) -> None:
    """Reduce each word modulo p, below 2^56 + 2^40."""
    for i in range(words.size):
        words[i] = fold(words[i])


@compiled(types.void(WRITE))
def reduce_all(words: Words) -> None:
    """Reduce each word modulo p, below p."""
    for i in range(words.size):
        words[i] = canonical(words[i])


@compiled(types.void(READ, READ_2D, WRITE))
def scatter(row_words: Words, signed: Words, buckets: Words) -> None:
    """Add each s x to the eight buckets of its row word, and fold the buckets after each tile.

    A bucket takes 64 of a tile's words on average. It takes more than 253, which would overflow it, with probability
    below 2^-237. Shapes: row_words (m,); signed (1, >= m) with buckets (8 * 256,), or (4, >= m) with (8 * 256 * 4,).
    """
    for start in range(0, row_words.size, TILE):
        stop = min(start + TILE, row_words.size)
        if signed.shape[0] == 1:
            scatter_one(row_words[start:stop], signed[0, start:stop], buckets)
        else:
            for i in range(start, stop):
                word = row_words[i]
                y0, y1, y2, y3 = signed[0, i], signed[1, i], signed[2, i], signed[3, i]
                for byte in range(BYTES):
                    first = (np.uint64(byte * BYTE_VALUES) + (word & BYTE_MASK)) * np.uint64(LANES)
                    add_four(buckets, first, y0, y1, y2, y3)
                    word >>= BYTE_BITS
        fold_all(buckets)


@compiled(types.UniTuple(_U64, 2)(READ, READ_2D, types.int64, WRITE))
def weighed(x: Words, limbs: Words, first: int, room: Words) -> tuple[np.uint64, np.uint64]:
    """Return `two_products` of x and both weights from `first` on. limbs: (4, N). room: (48,), overwritten."""
    a0 = a1 = a2 = b0 = b1 = b2 = rest_a = rest_b = ZERO
    n_vectors, done, length = x.size // TOGETHER, 0, limbs.shape[1]
    while done < n_vectors:
        here, at = min(n_vectors - done, VECTORS_PER_BLOCK), TOGETHER * done
        limb_products(x, at, limbs, first + at, length, here, room)
        for k in range(TOGETHER):
            low, high = room[k], room[TOGETHER + k]
            a0, a1, a2 = a0 + fold(low), a1 + fold(room[2 * TOGETHER + k] - low - high), a2 + fold(high)
            low, high = room[3 * TOGETHER + k], room[4 * TOGETHER + k]
            b0, b1, b2 = b0 + fold(low), b1 + fold(room[5 * TOGETHER + k] - low - high), b2 + fold(high)
        a0, a1, a2, b0, b1, b2 = fold(a0), fold(a1), fold(a2), fold(b0), fold(b1), fold(b2)
        done += here
    for i in range(TOGETHER * n_vectors, x.size):
        rest_a = fold(rest_a + multiply(x[i], limbs[0, first + i] + (limbs[1, first + i] << B28)))
        rest_b = fold(rest_b + multiply(x[i], limbs[2, first + i] + (limbs[3, first + i] << B28)))
    return canonical(joined(a0, a1, a2) + rest_a), canonical(joined(b0, b1, b2) + rest_b)


@compiled(types.void(READ, types.int64, READ_2D, WRITE_2D, WRITE))
def weigh(share: Words, start: int, limbs: Words, sums: Words, share_sum: Words) -> None:
    """Add a tile's part of both weighted sums of each wire: sums[e, m] += sum_j weights[e, j] x_(m N + j).

    Add the tile to the sum of shares too. start: the coordinate of share[0]. limbs: those of `limb_products`, of both
    weights. Shapes: share and share_sum (m,), share below p; limbs (4, N); sums (2, c), below p.
    """
    length, at, room = limbs.shape[1], 0, np.empty(6 * TOGETHER, dtype=np.uint64)
    while at < share.size:
        wire, first = divmod(start + at, length)
        stop = min(share.size, at + length - first)
        part = weighed(share[at:stop], limbs, first, room)
        sums[0, wire] = canonical(sums[0, wire] + part[0])
        sums[1, wire] = canonical(sums[1, wire] + part[1])
        at = stop
    for i in range(share.size):
        share_sum[i] += share[i]


@compiled(types.void(READ, READ, types.int64, types.int64, WRITE))
def derived_bits(values: Words, sent: Words, row_bits: int, norm_bits: int, bits: Words) -> None:
    """Fill in all bits of the 65 numbers, the lowest of each derived: b_0 = V - sum_(i >= 1) 2^i b_i modulo p.

    Shapes: values (65,), sent (64 (row_bits - 1) + norm_bits - 1,), bits (64 row_bits + norm_bits,).
    """
    at = to = 0
    for j in range(values.size):
        width = row_bits if j < values.size - 1 else norm_bits
        total = ZERO
        for i in range(width - 1, 0, -1):
            bit = sent[at + i - 1]
            bits[to + i] = bit
            total = fold((total + bit) << ONE)
        bits[to] = canonical(values[j] + TWO_P - total)
        at, to = at + width - 1, to + width


@compiled(types.void(READ_2D, READ, READ, READ, READ, WRITE_2D))
def masked_wires(wires: Words, s: Words, s_x: Words, points: Words, vanishing: Words, opened: Words) -> None:
    """Write opened[e, m] = wires[e, m] + vanishing[e] (s_m + s'_m t_e).

    Shapes: (2, c), (c,), (c,), opened (2, >= c).
    """
    for e in range(wires.shape[0]):
        for m in range(wires.shape[1]):
            mask = s[m] + multiply(s_x[m], points[e])
            opened[e, m] = canonical(wires[e, m] + multiply(mask, vanishing[e]))


@compiled(types.void(READ, _U64, _U64, _U64, WRITE))
def numbers(rows: Words, norm: np.uint64, window: np.uint64, threshold: np.uint64, out: Words) -> None:
    """Write the 65 numbers whose bits are shown, below p: each row value plus b, and T - sum X_i^2. norm: below p."""
    for j in range(rows.size):
        out[j] = canonical(rows[j] + window)
    out[rows.size] = canonical(threshold + P - norm)


@compiled(types.void(READ, READ_2D, READ, _SIZES, _CONSTANTS, READ_2D, READ_2D, READ_2D, WRITE_2D))
def open_proof(
    rows: Words,
    wires: Words,
    proof: Words,
    sizes: tuple[int, int, int, int],
    constants: tuple[np.uint64, np.uint64],
    points: Words,
    powers: Words,
    bit_weights: Words,
    opened: Words,
) -> None:
    """Compute `precad.mpc.proved.verifier.opened_share`: f of each wire, F, u and q at both points.

    sizes: bits of a row value and of the norm, N, n. constants: b and T. Server B has zeros there. points: t, t^N - 1
    and t^n - 1, (3, 2). The powers and bit_weights are those of `precad.mpc.proved.query.Query`.
    Shapes: rows (64,), wires (2, c), opened (2, c + 3), and a proof of these sizes.
    All elements are below p, so no sum before a product exceeds 2^58.
    """
    row_bits, norm_bits, length, domain = sizes
    n_wires, n_sent = wires.shape[1], rows.size * (row_bits - 1) + norm_bits - 1
    of_f = n_sent + 2 * n_wires
    of_r = of_f + 2 * length + 3
    squares, r, r_x, quotient = proof[of_f:of_r], proof[of_r], proof[of_r + 1], proof[of_r + 2 :]
    norm = multiply(canonical(squares[0] + squares[length] + squares[2 * length]), np.uint64(length))
    shown, bits = np.empty(rows.size + 1, dtype=np.uint64), np.empty(n_sent + rows.size + 1, dtype=np.uint64)
    numbers(rows, canonical(norm), constants[0], constants[1], shown)
    derived_bits(shown, proof[:n_sent], row_bits, norm_bits, bits)
    s, s_x = proof[n_sent : n_sent + n_wires], proof[n_sent + n_wires : of_f]
    masked_wires(wires, s, s_x, points[0], points[1], opened)
    of_squares = two_products(squares, powers[0], powers[1])
    of_bits = two_products(bits, bit_weights[0], bit_weights[1])
    of_quotient = two_products(quotient[: domain + 3], powers[0], powers[1])
    for e in range(2):
        opened[e, n_wires] = of_squares[e]
        mask = multiply(r + multiply(r_x, points[0, e]), points[2, e])
        opened[e, n_wires + 1] = canonical(of_bits[e] + mask)
        opened[e, n_wires + 2] = of_quotient[e]


@compiled(types.boolean(READ_2D, READ_2D, READ_2D))
def is_valid(ours: Words, theirs: Words, points: Words) -> bool:
    """Return whether sum f^2 = F and u^2 - u = (t^n - 1) q at both points, for both servers' parts, (2, c + 3), below
    p.

    points: of `open_proof`. Sums of two elements are below 2p, and no word here exceeds 8p.
    """
    n_wires, difference = ours.shape[1] - 3, ZERO
    for e in range(2):
        total = ZERO
        for m in range(n_wires):
            value = ours[e, m] + theirs[e, m]
            total = fold(total + multiply(value, value))
        of_f = ours[e, n_wires] + theirs[e, n_wires]
        u, q = ours[e, n_wires + 1] + theirs[e, n_wires + 1], ours[e, n_wires + 2] + theirs[e, n_wires + 2]
        difference |= canonical(total + TWO_P - of_f)
        difference |= canonical(multiply(u, u) + TWO_P + TWO_P + TWO_P - u - multiply(points[2, e], q))
    is_zero: bool = difference == ZERO
    return is_zero
