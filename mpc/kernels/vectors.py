"""Steps on eight words at once, in LLVM's own types, for `precad.mpc.kernels.wires`, `proofs` and `packing`.

Numba's compiler finds such steps itself in a loop over one array, and in few others. A vector of eight words is made of
what the processor has. The arithmetic is that of `precad.mpc.kernels.prime_field`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from precad.mpc.kernels import prime_field

TOGETHER = 8
"""Words of a vector."""
VECTORS_PER_BLOCK = 64
"""Vectors of which two products of limbs each fit into a word: 2 * 64 (2^28 - 1)^2 < 2^64.

A sum by sum may wrap: less the two other products, it is a sum of two products."""

_VECTOR, _BYTES = ir.VectorType(ir.IntType(64), TOGETHER), ir.VectorType(ir.IntType(8), 8 * TOGETHER)
_BYTES_OF_ELEMENT = 7
_SPREAD = ir.Constant(
    ir.VectorType(ir.IntType(32), _BYTES.count),
    [
        _BYTES_OF_ELEMENT * element + byte if byte < _BYTES_OF_ELEMENT else _BYTES.count
        for element in range(TOGETHER)
        for byte in range(8)
    ],
)
"""Where each byte of eight elements comes from: from the packed group, and the highest from a vector of zeros."""


class _Vectors:
    """Builds steps of `prime_field` for eight words at once, with LLVM's builder."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any) -> None:
        self._builder = builder
        self._data = context.make_array(array_type)(context, builder, array).data

    def place(self, index: Any) -> Any:
        """Return where the vector of this index lies."""
        return self.word(self._builder.mul(index, ir.Constant(index.type, TOGETHER)))

    def word(self, index: Any) -> Any:
        """Return where the vector begins whose first word has this index."""
        return self._builder.bitcast(self._builder.gep(self._data, [index]), _VECTOR.as_pointer())

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


_MASK28, _MASK32, _P = map(_eight, (prime_field.MASK28, prime_field.MASK32, prime_field.P))


@intrinsic
def butterfly(_context: Any, values: Any, low: Any, high: Any, of_low: Any, of_high: Any) -> Any:
    """Replace vectors x at `low` and y at `high` by x + w y and x - w y, each at most 2p above x."""
    signature = types.void(values, low, high, of_low, of_high)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, low, high, *constants = arguments
        vectors = _Vectors(context, builder, signature.args[0], array)
        of_x, of_y = vectors.place(low), vectors.place(high)
        x, product = builder.add(vectors.load(of_x), _P), vectors.less_p(vectors.load(of_y), *constants)
        vectors.store(builder.add(x, product), of_x)
        vectors.store(builder.sub(x, product), of_y)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def scale(_context: Any, values: Any, at: Any, of_low: Any, of_high: Any) -> Any:
    """Replace the vector y at `at` by w y, below 2p."""
    signature = types.void(values, at, of_low, of_high)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, *constants = arguments
        vectors = _Vectors(context, builder, signature.args[0], array)
        place = vectors.place(at)
        vectors.store(builder.add(vectors.less_p(vectors.load(place), *constants), _P), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def limb_products(
    _context: Any, x: Any, at: Any, limbs: Any, first: Any, length: Any, n_vectors: Any, sums: Any
) -> Any:
    """Write sums of products of limbs of x[at:] and of two weights from `first` on, in eight parts: (6 * 8,).

    limbs: of each weight the low 28 bits and the high 28, (4, length). For each weight: low by low, high by high, sum
    by sum. Three products are as good as four. x: below 2^56. n_vectors: at most VECTORS_PER_BLOCK.
    """
    signature = types.void(x, at, limbs, first, length, n_vectors, sums)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, at, limbs, first, length, n_vectors, sums = arguments
        of_x, of_limbs, of_sums = (
            _Vectors(context, builder, signature.args[i], array) for i, array in ((0, x), (2, limbs), (6, sums))
        )
        totals = [cgutils.alloca_once_value(builder, _eight(0)) for _ in range(6)]
        with cgutils.for_range(builder, n_vectors) as loop:
            offset = builder.mul(loop.index, ir.Constant(loop.index.type, TOGETHER))
            word = of_x.load(of_x.word(builder.add(at, offset)))
            low, high = builder.and_(word, _MASK28), builder.lshr(word, _eight(28))
            both = builder.add(low, high)
            for point in range(2):
                own = []
                for row in (2 * point, 2 * point + 1):
                    skipped = builder.mul(length, ir.Constant(length.type, row))
                    own.append(of_limbs.load(of_limbs.word(builder.add(builder.add(skipped, first), offset))))
                own.append(builder.add(*own))
                for factor, limb, total in zip((low, high, both), own, totals[3 * point : 3 * point + 3], strict=True):
                    product = builder.mul(builder.and_(factor, _MASK32), builder.and_(limb, _MASK32))
                    builder.store(builder.add(builder.load(total), product), total)
        for row, total in enumerate(totals):
            of_sums.store(builder.load(total), of_sums.place(ir.Constant(at.type, row)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def unpack_groups(_context: Any, packed: Any, out: Any, n_groups: Any, refused: Any) -> Any:
    """Unpack groups of seven words to eight elements, and count those of p or above in `refused`, (8,).

    A group is read with the word behind it: of the last one of an array, only what is before it may be unpacked here.
    Words are little-endian, as on every processor that Numba compiles for.
    """
    signature = types.void(packed, out, n_groups, refused)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        packed, out, n_groups, refused = arguments
        of_packed, of_out, of_refused = (
            _Vectors(context, builder, signature.args[i], array) for i, array in ((0, packed), (1, out), (3, refused))
        )
        total = cgutils.alloca_once_value(builder, _eight(0))
        with cgutils.for_range(builder, n_groups) as loop:
            first = builder.mul(loop.index, ir.Constant(loop.index.type, _BYTES_OF_ELEMENT))
            group = builder.bitcast(of_packed.load(of_packed.word(first)), _BYTES)
            spread = builder.shuffle_vector(group, ir.Constant(_BYTES, [0] * _BYTES.count), _SPREAD)
            elements = builder.bitcast(spread, _VECTOR)
            of_out.store(elements, of_out.place(loop.index))
            is_below = builder.lshr(builder.sub(elements, _P), _eight(63))
            builder.store(builder.add(builder.load(total), builder.sub(_eight(1), is_below)), total)
        of_refused.store(builder.load(total), of_refused.place(ir.Constant(n_groups.type, 0)))
        return context.get_dummy_value()

    return signature, generate
