"""The client's wires of mode `proved`, compiled by Numba: eight side by side, so that one step serves all of them.

A vector holds the same place of eight wires. Steps between two places are the same for all eight, and need no
shuffling at any distance. Transforms take a quarter of the time that one wire alone takes.

No branch and no address depends on an element. Source: docs/reference/protocol-v2.md, section 6.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from precad.mpc.kernels.machine_code import READ, READ_2D, READ_SIGNED, WRITE, WRITE_2D, compiled
from precad.mpc.kernels.prime_field import (
    B63,
    ONE,
    TWO_P,
    TWO_TO_64,
    ZERO,
    P,
    Words,
    canonical,
    fold,
    montgomery,
    multiply,
)
from precad.mpc.kernels.vectors import TOGETHER, butterfly, scale

_U64 = types.uint64


@compiled(types.void(WRITE, READ_2D))
def scrambling(values: Words, roots: Words) -> None:
    """Do `prime_field.scrambling` to eight wires, place by place: (8 N,), roots (2, N / 2)."""
    half, n_blocks = values.size // TOGETHER // 2, 1
    while half > 0:
        for block in range(n_blocks):
            first = 2 * half * block
            for i in range(first, first + half):
                butterfly(values, i, i + half, roots[0, block], roots[1, block])
        half, n_blocks = half // 2, 2 * n_blocks


@compiled(types.void(WRITE, READ_2D))
def ordering(values: Words, roots: Words) -> None:
    """Do `prime_field.ordering` to eight wires, place by place: (8 N,), roots (2, N)."""
    half, length = 1, values.size // TOGETHER
    while half < length:
        for first in range(0, length, 2 * half):
            for i in range(half):
                butterfly(values, first + i, first + half + i, roots[0, half + i], roots[1, half + i])
        half *= 2


@compiled(types.void(WRITE, READ))
def add_squares(sums: Words, values: Words) -> None:
    """Add y^2 / 2^64 modulo p of each value to its sum, which stays below 2^56 + 2^40. Values below 2^62."""
    for i in range(sums.size):
        sums[i] = fold(sums[i] + montgomery(values[i], values[i]))


@compiled(types.void(READ_SIGNED, types.int64, WRITE))
def take_eight(x: NDArray[np.int64], first: int, values: Words) -> None:
    """Write the wires from `first` on, as elements, place by place. What is behind the end of x is zero."""
    length = values.size // TOGETHER
    for k in range(TOGETHER):
        start = (first + k) * length
        n_values = max(0, min(length, x.size - start))
        for i in range(n_values):
            word = np.uint64(x[start + i])
            values[TOGETHER * i + k] = word + (P & (ZERO - (word >> B63)))
        for i in range(n_values, length):
            values[TOGETHER * i + k] = ZERO


@compiled(types.void(READ, WRITE))
def add_up(sums: Words, out: Words) -> None:
    """Write 2^64 times the sum of each place's eight sums, below p: (8 N,), (N,)."""
    for i in range(out.size):
        total = ZERO
        for k in range(TOGETHER):
            total += sums[TOGETHER * i + k]
        out[i] = canonical(multiply(total, TWO_TO_64))


@compiled(types.void(READ_SIGNED, READ_2D, _U64, READ_2D, READ_2D, READ_2D, WRITE_2D, WRITE))
def wires(
    x: NDArray[np.int64],
    masks: Words,
    root: np.uint64,
    inverse: Words,
    twist: Words,
    forward: Words,
    squares: Words,
    tops: Words,
) -> None:
    """Write the sums of the wires' squares at the 2N-th roots of unity, eight wires in memory at a time.

    `squares[0]` takes those at the powers of root^2, where a wire has the values of x. `squares[1]` takes those at root
    times these powers, where x^N is -1. `tops[m]` is N times the highest coefficient of a wire before its mask.

    `x` holds integers, no magnitude above (p - 1) / 2, (d,). `masks` is s and s', (2, c). `root` is of order 2N. The
    tables of `precad.mpc.proved.field.Transform` are `inverse`, (2, N / 2), `twist` and `forward`, (2, N).
    What is filled in has shapes (2, N) and (c,), below p. Values grow by 2p a layer, so to 34p where N is 2^15.
    """
    length = squares.shape[1]
    values, sums = np.empty(TOGETHER * length, dtype=np.uint64), np.zeros((2, TOGETHER * length), dtype=np.uint64)
    for first in range(0, tops.size, TOGETHER):
        take_eight(x, first, values)
        add_squares(sums[0], values)
        scrambling(values, inverse)
        n_wires = min(TOGETHER, tops.size - first)
        for k in range(n_wires):
            tops[first + k] = canonical(values[TOGETHER * (length - 1) + k])
        for i in range(length):
            scale(values, i, twist[0, i], twist[1, i])
        for k in range(n_wires):
            values[k] += TWO_P - (masks[0, first + k] << ONE)
            values[TOGETHER * (length // 2) + k] += multiply(TWO_P - (masks[1, first + k] << ONE), root)
        ordering(values, forward)
        add_squares(sums[1], values)
    add_up(sums[0], squares[0])
    add_up(sums[1], squares[1])
