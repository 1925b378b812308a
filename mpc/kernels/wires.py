"""The client's wires of mode `proved`, compiled by Numba: eight side by side, so that one step serves all of them.

A vector holds the same place of eight wires. Steps between two places are the same for all eight, and need no
shuffling at any distance. Transforms take a quarter of the time that one wire alone takes. A vector is LLVM's, which
makes of it what the processor has. The arithmetic is that of `precad.mpc.kernels.prime_field`.

No branch and no address depends on an element. Source: `proved.md` section 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from precad.mpc.kernels import prime_field
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

TOGETHER = 8

_U64 = types.uint64
_VECTOR = ir.VectorType(ir.IntType(64), TOGETHER)


class _Lanes:
    """Builds steps of `prime_field` for eight words at once, with LLVM's builder."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any) -> None:
        self._builder = builder
        self._data = context.make_array(array_type)(context, builder, array).data

    def place(self, index: Any) -> Any:
        """Return where the vector of this index lies."""
        first = self._builder.mul(index, ir.Constant(index.type, TOGETHER))
        return self._builder.bitcast(self._builder.gep(self._data, [first]), _VECTOR.as_pointer())

    def load(self, place: Any) -> Any:
        """Return a vector."""
        return self._builder.load(place, align=8)

    def store(self, vector: Any, place: Any) -> None:
        """Write a vector."""
        self._builder.store(vector, place, align=8)

    def alike(self, word: Any) -> Any:
        """Return eight times the same word."""
        none, of_int = ir.Constant(_VECTOR, ir.Undefined), ir.IntType(32)
        first = self._builder.insert_element(none, word, ir.Constant(of_int, 0))
        return self._builder.shuffle_vector(first, none, ir.Constant(ir.VectorType(of_int, TOGETHER), [0] * TOGETHER))

    def less_p(self, x: Any, of_low: Any, of_high: Any) -> Any:
        """Return `prime_field.times` less p, between -p and p: x below 2^62, and a factor's constants."""
        add, multiply, shift, keep = (getattr(self._builder, name) for name in ("add", "mul", "lshr", "and_"))
        of_low, of_high = self.alike(of_low), self.alike(of_high)
        low, high = keep(x, _eight(prime_field.MASK31)), keep(shift(x, _eight(31)), _MASK32)
        words = add(multiply(low, keep(of_low, _MASK32)), multiply(high, keep(of_high, _MASK32)))
        above = add(multiply(low, shift(of_low, _eight(32))), multiply(high, shift(of_high, _eight(32))))
        by_low_word = multiply(keep(words, _MASK32), _eight(prime_field.MASK24))
        return self._builder.sub(add(shift(words, _eight(32)), above), by_low_word)


def _eight(word: int | np.uint64) -> Any:
    """Return eight times a constant."""
    return ir.Constant(_VECTOR, [int(word)] * TOGETHER)


_MASK32 = _eight(prime_field.MASK32)


@intrinsic
def butterfly(_context: Any, values: Any, low: Any, high: Any, of_low: Any, of_high: Any) -> Any:
    """Replace vectors x at `low` and y at `high` by x + w y and x - w y, each at most 2p above x."""
    signature = types.void(values, low, high, of_low, of_high)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, low, high, *constants = arguments
        lanes = _Lanes(context, builder, signature.args[0], array)
        of_x, of_y = lanes.place(low), lanes.place(high)
        x, product = builder.add(lanes.load(of_x), _eight(P)), lanes.less_p(lanes.load(of_y), *constants)
        lanes.store(builder.add(x, product), of_x)
        lanes.store(builder.sub(x, product), of_y)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def scale(_context: Any, values: Any, at: Any, of_low: Any, of_high: Any) -> Any:
    """Replace the vector y at `at` by w y, below 2p."""
    signature = types.void(values, at, of_low, of_high)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, *constants = arguments
        lanes = _Lanes(context, builder, signature.args[0], array)
        place = lanes.place(at)
        lanes.store(builder.add(lanes.less_p(lanes.load(place), *constants), _eight(P)), place)
        return context.get_dummy_value()

    return signature, generate


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
