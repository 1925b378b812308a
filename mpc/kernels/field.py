"""Arithmetic of F_p, p = 2^127 - 1, for `precad.mpc.gate.equality`, compiled by Numba. `precad.mpc.kernels.loading`
loads it when first needed.

An element is two words, the low one first, and below p. Products are made of four 64-bit products. 2^127 = 1 modulo p,
so what lies above bit 126 is added to what lies below. `tests/mpc/field_twin.py` says the same in Python's integers.

No branch and no address depends on an element: a comparison is only ever the carry of an addition.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from precad.mpc.kernels.machine_code import READ_2D, READ_3D, WRITE_2D, compiled
from precad.mpc.kernels.wide import high_product

Words = NDArray[np.uint64]

ZERO, ONE, SIGN = np.uint64(0), np.uint64(1), np.uint64(63)
TOP = np.uint64(2**63 - 1)
"""The high word of p; the low one is all ones."""

_U64, _PAIR = types.uint64, types.UniTuple(types.uint64, 2)


@compiled(_PAIR(_U64, _U64, _U64, _U64))
def add(x0: np.uint64, x1: np.uint64, y0: np.uint64, y1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return x + y modulo p, below p, for any x and y up to p."""
    low = x0 + y0
    high = x1 + y1 + np.uint64(low < x0)
    folded = low + (high >> SIGN)
    top = (high & TOP) + np.uint64(folded < low)
    is_p = (top + np.uint64(folded + ONE < folded)) >> SIGN  # bit 127 of the value and one
    canonical = folded + is_p
    return canonical, (top + np.uint64(canonical < folded)) & TOP


@compiled(_PAIR(_U64, _U64, _U64, _U64))
def multiply(x0: np.uint64, x1: np.uint64, y0: np.uint64, y1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return x y modulo p, below p, for any x and y up to p."""
    word0, carry = x0 * y0, high_product(x0, y0)
    cross = x0 * y1
    word1 = carry + cross
    carry = high_product(x0, y1) + np.uint64(word1 < cross)
    cross = x1 * y0
    word1 += cross
    word2 = high_product(x1, y0) + np.uint64(word1 < cross)
    word2 += carry
    word3 = high_product(x1, y1) + np.uint64(word2 < carry)
    cross = x1 * y1
    word2 += cross
    word3 += np.uint64(word2 < cross)
    low, high = add(word0, word1 & TOP, (word1 >> SIGN) | (word2 << ONE), (word2 >> SIGN) | (word3 << ONE))
    return low, high


@compiled(types.void(READ_2D, _U64, _U64, WRITE_2D))
def hashes(words: Words, key0: np.uint64, key1: np.uint64, out: Words) -> None:
    """Compute `precad.mpc.gate.equality.polynomial_hashes`, by Horner's rule. Shapes: words (n, w), out (n, 2)."""
    for i in range(words.shape[0]):
        low = high = ZERO
        for word in words[i]:
            low, high = add(low, high, word, ZERO)
            low, high = multiply(low, high, key0, key1)
        out[i, 0], out[i, 1] = low, high


@compiled(types.void(READ_2D, READ_3D, _U64, WRITE_2D))
def differences(hashed: Words, tuples: Words, sign: np.uint64, out: Words) -> None:
    """Write hash - omega where `sign` is zero, -hash - omega where it is all ones.

    Shapes: (n, 2), (n, 3, 2), (n, 2).
    """
    for i in range(hashed.shape[0]):
        low, high = hashed[i, 0] ^ sign, (hashed[i, 1] ^ sign) & TOP
        out[i, 0], out[i, 1] = add(low, high, ~tuples[i, 1, 0], ~tuples[i, 1, 1] & TOP)


@compiled(types.void(READ_2D, READ_2D, READ_3D, WRITE_2D))
def masked(ours: Words, theirs: Words, tuples: Words, out: Words) -> None:
    """Write rho e + rho omega in shares, with e the sum of both servers' elements. Shapes: (n, 2), tuples (n, 3, 2)."""
    for i in range(ours.shape[0]):
        e0, e1 = add(ours[i, 0], ours[i, 1], theirs[i, 0], theirs[i, 1])
        low, high = multiply(e0, e1, tuples[i, 0, 0], tuples[i, 0, 1])
        out[i, 0], out[i, 1] = add(low, high, tuples[i, 2, 0], tuples[i, 2, 1])


@compiled(types.void(READ_2D, READ_2D, WRITE_2D))
def sums(ours: Words, theirs: Words, out: Words) -> None:
    """Add element by element. Shapes: (n, 2)."""
    for i in range(ours.shape[0]):
        out[i, 0], out[i, 1] = add(ours[i, 0], ours[i, 1], theirs[i, 0], theirs[i, 1])
