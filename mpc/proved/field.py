"""F_p, p = 2^56 - 2^32 + 1, on arrays: words, bytes and transforms. The loops are compiled when they are first needed.

An element is a uint64 below p. On the wire it has 7 bytes, the lowest first. It stands for the integer in (-p/2, p/2)
that it is congruent to. Source: docs/reference/protocol-v2.md, section 3.
"""

from __future__ import annotations

import functools
import sys
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.mpc import ring
from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.kernels import loading
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.ring import RingArray

P: Final = 2**56 - 2**32 + 1
GENERATOR: Final = 22
"""The smallest primitive root."""
ELEMENT_BYTES: Final = 7
MAX_ADDITIONS: Final = 254
"""Elements whose sum fits into a word."""

FieldArray: TypeAlias = NDArray[np.uint64]
Packed: TypeAlias = bytes | bytearray | memoryview
"""Elements on the wire, 7 bytes each."""

PLUS, MINUS = np.uint64(0), np.uint64(2**64 - 1)
"""Signs, as the compiled addition takes them."""
_GROUP = 8
"""Elements that fill seven words of 64 bits."""


def root_of_unity(order: int) -> int:
    """Return the root of unity of this order, a power of two up to 2^32: the generator's power."""
    return pow(GENERATOR, (P - 1) // order, P)


def from_integers(integers: RingArray) -> FieldArray:
    """Return integers as elements. Raises ParameterError above (p - 1) / 2 in magnitude: no element stands for that."""
    if max(int(integers.max(initial=0)), -int(integers.min(initial=0))) > P // 2:
        raise ParameterError("integers: expected magnitudes of at most (p - 1) / 2")
    out = np.empty(integers.size, dtype=np.uint64)
    loading.prime_field().residues(np.ascontiguousarray(integers), out)
    return out


def to_integers(elements: FieldArray) -> RingArray:
    """Return the integers in (-p/2, p/2) that the elements stand for."""
    words = elements.view(np.int64)
    return words - (P & ((P // 2 - words) >> 63))


def add(x: FieldArray, y: FieldArray, out: FieldArray | None = None) -> FieldArray:
    """Return x + y. Shapes: (m,). Words of x may be sums of up to 63 elements; `out` may be x or y.

    Raises ParameterError for other shapes: compiled loops would read behind an array's end.
    """
    return _added(x, y, PLUS, out)


def subtract(x: FieldArray, y: FieldArray, out: FieldArray | None = None) -> FieldArray:
    """Return x - y, as `add`."""
    return _added(x, y, MINUS, out)


def _added(x: FieldArray, y: FieldArray, sign: np.uint64, out: FieldArray | None) -> FieldArray:
    if out is None:
        out = np.empty_like(x)
    if not x.shape == y.shape == out.shape:
        raise ParameterError(f"elements: expected arrays of one shape, found {x.shape}, {y.shape} and {out.shape}")
    if out is x:
        loading.prime_field().add_to(out, y, sign)
    else:
        loading.prime_field().add(x, y, sign, out)
    return out


def times(x: FieldArray, factor: int) -> FieldArray:
    """Return every element times an integer."""
    factors, order = _factors(np.full(x.size, factor % P, dtype=np.uint64)), np.arange(x.size)
    return _scaled(x, order, factors)


def dot(x: FieldArray, y: FieldArray) -> int:
    """Return <x, y>. Shapes: (m,), of y the first m."""
    return int(loading.prime_field().two_products(x, y, y)[0])


def random_elements(n: int, random_bytes: RandomBytes = SYSTEM_BYTES) -> FieldArray:
    """Return uniform elements: 7 bytes each, drawn again where they are not below p."""
    found: list[FieldArray] = []
    missing = n
    while missing:
        words = np.empty(missing, dtype=np.uint64)
        _unpacked(random_bytes(ELEMENT_BYTES * missing), words)
        found.append(words[words < P])
        missing -= found[-1].size
    return np.concatenate([*found, np.empty(0, dtype=np.uint64)])


def to_bytes(elements: FieldArray) -> bytes:
    """Return elements on the wire, 7 bytes each."""
    groups, padded = -(-elements.size // _GROUP), np.ascontiguousarray(elements, np.uint64)
    if elements.size % _GROUP:
        padded = np.zeros(_GROUP * groups, dtype=np.uint64)
        padded[: elements.size] = elements
    words = np.empty(ELEMENT_BYTES * groups, dtype=np.uint64)
    loading.packing().pack(padded, words)
    return words.astype("<u8", copy=False).tobytes()[: ELEMENT_BYTES * elements.size]


def from_bytes(data: Packed, *, n_elements: int, field: str = "elements") -> FieldArray:
    """Return what `to_bytes` wrote. Raises MalformedMessageError on another length or an element of p or above."""
    _require_length(data, n_elements, field)
    elements = np.empty(n_elements, dtype=np.uint64)
    _require_none(_unpacked(data, elements), field)
    return elements


def require_elements(data: Packed, *, n_elements: int, field: str = "elements") -> None:
    """Raise as `from_bytes` does, and keep nothing: a tile of elements is in memory at a time."""
    _require_length(data, n_elements, field)
    whole, room = memoryview(data), np.empty(min(n_elements, ring.TILE), dtype=np.uint64)
    n_refused = 0
    for tile in ring.tiles(n_elements):
        packed = whole[ELEMENT_BYTES * tile.start : ELEMENT_BYTES * tile.stop]
        n_refused += _unpacked(packed, room[: tile.stop - tile.start])
    _require_none(n_refused, field)


def _require_length(data: Packed, n_elements: int, field: str) -> None:
    if len(data) != ELEMENT_BYTES * n_elements:
        raise MalformedMessageError(f"{field}: expected {ELEMENT_BYTES * n_elements} bytes, found {len(data)}")


def _require_none(n_refused: int, field: str) -> None:
    if n_refused:
        raise MalformedMessageError(f"{field}: expected elements below p, found {n_refused} others")


def packed_room(n_elements: int) -> FieldArray:
    """Return words with room for packed elements, in whole groups, for `unpack_into`. What is spare is zero."""
    words = np.empty(ELEMENT_BYTES * -(-n_elements // _GROUP), dtype=np.uint64)
    words[-ELEMENT_BYTES:] = 0
    return words


def packed_in_place(held: memoryview) -> FieldArray | None:
    """Return packed elements in whole groups as words, where they lie. None where these are no words of this machine.

    A tile is copied in the time that unpacking it takes.
    """
    if len(held) % (ELEMENT_BYTES * _GROUP) or sys.byteorder == "big":
        return None
    words = np.frombuffer(held, dtype=np.uint64)
    return words if words.flags.aligned else None


def unpack_into(packed: FieldArray, out: FieldArray) -> int:
    """Fill `out` with the packed elements of `packed_room`'s words. Return how many are not below p.

    Raises ParameterError for fewer words: compiled loops would read behind their end.
    """
    if packed.size < (n_words := ELEMENT_BYTES * -(-out.size // _GROUP)):
        raise ParameterError(f"packed: expected {n_words} words of {out.size} elements, found {packed.size}")
    if sys.byteorder == "big":
        packed.byteswap(inplace=True)
    kernels, whole = loading.packing(), out.size - out.size % _GROUP
    refused = int(kernels.unpack(packed[: whole // _GROUP * ELEMENT_BYTES], out[:whole]))
    if whole < out.size:
        last = np.empty(_GROUP, dtype=np.uint64)
        refused += int(kernels.unpack(packed[whole // _GROUP * ELEMENT_BYTES :], last))
        out[whole:] = last[: out.size - whole]
    return refused


def _unpacked(data: Packed, out: FieldArray) -> int:
    """Fill `out` with elements on the wire. Return how many are not below p."""
    packed = packed_room(out.size)
    packed.view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return unpack_into(packed, out)


def powers(first: int, base: int, n: int) -> FieldArray:
    """Return first base^i for i < n."""
    out = np.empty(n, dtype=np.uint64)
    loading.prime_field().powers(np.uint64(first % P), np.uint64(base % P), out)
    return out


def _factors(values: FieldArray) -> FieldArray:
    """Return the two constants by which compiled loops multiply by each value, (2, m)."""
    table = np.empty((2, values.size), dtype=np.uint64)
    loading.prime_field().constants(values, table[0], table[1])
    return table


def _scaled(values: FieldArray, order: NDArray[np.int64], factors: FieldArray) -> FieldArray:
    out = np.empty(order.size, dtype=np.uint64)
    loading.prime_field().scaled(values, order, factors[0], factors[1], out)
    return out


class Transform:
    """Transforms of n values, n a power of two: between values at w^j, w of order n, and coefficients.

    The coset is g w^j, g of order 2n, where x^n is -1. Tables are those of `_factors`, (2, m). Made by
    `transform`, once per n.
    """

    def __init__(self, n: int) -> None:
        self.n, self.root = n, root_of_unity(2 * n)
        bits = n.bit_length() - 1
        indices = np.arange(n)
        self.reversed = np.zeros(n, dtype=np.int64)
        for bit in range(bits):
            self.reversed |= (indices >> bit & 1) << (bits - 1 - bit)
        by_root = powers(1, pow(self.root, 2, P), n)
        self.inverse = _factors(powers(1, pow(self.root, -2, P), n)[self.reversed[::2]])
        strides = [by_root[np.arange(half) * (n // (2 * half))] for half in (1 << bit for bit in range(bits))]
        self.forward = _factors(np.concatenate([np.zeros(1, dtype=np.uint64), *strides]))
        one_nth = pow(n, -1, P)
        self._scale = _factors(np.full(n, one_nth, dtype=np.uint64))
        self._coset_scale = _factors(powers(one_nth, pow(self.root, -1, P), n))
        self._to_coset = _factors(powers(1, self.root, n)[self.reversed])
        self.twist = _factors(powers(one_nth, self.root, n)[self.reversed])
        """From `scrambling`'s output to the input of `ordering`, for values on the coset."""

    def coefficients(self, values: FieldArray) -> FieldArray:
        """Return the polynomial of degree below n with these values at w^j."""
        return self._coefficients(values, self._scale)

    def coset_coefficients(self, values: FieldArray) -> FieldArray:
        """Return the polynomial of degree below n with these values at g w^j."""
        return self._coefficients(values, self._coset_scale)

    def coset_values(self, coefficients: FieldArray) -> FieldArray:
        """Return the values at g w^j of a polynomial of degree below n."""
        values = _scaled(coefficients, self.reversed, self._to_coset)
        loading.prime_field().ordering(values, *self.forward)
        loading.proofs().reduce_all(values)
        return values

    def _coefficients(self, values: FieldArray, scale: FieldArray) -> FieldArray:
        scrambled = values.copy()
        loading.prime_field().scrambling(scrambled, *self.inverse)
        return _scaled(scrambled, self.reversed, scale)


@functools.cache
def transform(n: int) -> Transform:
    """Return the transforms of n values."""
    return Transform(n)
