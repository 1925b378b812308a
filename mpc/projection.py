"""64 random ternary projections of a shared vector, modulo 2^64: the no-wrap test's linear part.

Row j of client i is v_j = sum_i u_ji s_i x_i with one public sign s_i per coordinate and one public bit u_ji per
coordinate and row, all drawn from the joint coin *after* every share was fixed. A projection of a share is a share of
the projection, so no message is needed.

Source: `secure_validation.md` section 4 (our theorem; the idea of ternary projections against wrap-around is PINE's,
arXiv 2311.10237).

Float64 matrix products do the work exactly: a word is cut into limbs of 22, 21 and 21 bits, a 0/1 combination of a
tile's limbs stays below 2^35, and the products are put together again modulo 2^64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpc import prg
from mpc.prg import Label, Purpose, Seed
from mpc.ring import RingArray

TILE = 1 << 13
"""Coordinates per step: 4 MiB of row bits as float64, whatever d is."""

LIMB_SHIFTS = (0, 22, 43)
LIMB_MASKS = ((1 << 22) - 1, (1 << 21) - 1, (1 << 21) - 1)


def row_bits(seed: Seed, label: Label, dim: int, n_rows: int) -> NDArray[np.uint8]:
    """u, shape (dim, n_rows), entries 0 and 1: bit j of coordinate i's word."""
    words = prg.stream(seed, Purpose.ROW_BITS, label, dim)
    return _bits_of(words, n_rows)


def row_signs(seed: Seed, label: Label, dim: int) -> RingArray:
    """s, shape (dim,), entries -1 and +1: bit i of the sign stream, set for -1."""
    words = prg.stream(seed, Purpose.ROW_SIGNS, label, -(-dim // 64))
    return 1 - 2 * _bits_of(words, 64).reshape(-1)[:dim].astype(np.int64)


def project(shares: RingArray, seed: Seed, label: Label, n_rows: int) -> RingArray:
    """v = U (s o x) modulo 2^64 for every client. Run by each server on its own shares.

    Shapes: shares (n, d); result (n, n_rows). All clients of a round share the rows.
    """
    n, dim = shares.shape
    signs = row_signs(seed, label, dim)
    words = prg.stream(seed, Purpose.ROW_BITS, label, dim)
    result = np.zeros((n_rows, n), dtype=np.uint64)
    for start in range(0, dim, TILE):
        tile = slice(start, start + TILE)
        bits = _bits_of(words[tile], n_rows).astype(np.float64)
        signed = (shares[:, tile] * signs[tile]).view(np.uint64)
        for shift, limb_mask in zip(LIMB_SHIFTS, LIMB_MASKS, strict=True):
            limbs = ((signed >> np.uint64(shift)) & np.uint64(limb_mask)).astype(np.float64)
            result += (bits.T @ limbs.T).astype(np.uint64) << np.uint64(shift)
    return np.ascontiguousarray(result.T).view(np.int64)


def _bits_of(words: RingArray, n_bits: int) -> NDArray[np.uint8]:
    """The n_bits low bits of every word, lowest first: (m,) to (m, n_bits)."""
    as_bytes = words.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)
    return np.unpackbits(as_bytes, axis=1, bitorder="little")[:, :n_bits]
