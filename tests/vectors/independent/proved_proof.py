"""Section 6 of `docs/reference/protocol-v2.md`: what a client proves of its update X."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.vectors.independent.proved_parameters import Sizes

Rows = tuple[Sequence[int], Sequence[int]]
"""Words of ROW_BITS and of ROW_SIGNS."""


class SilentError(Exception):
    """Signal that an honest client has no proof of this update, and sends nothing in this round."""


@dataclass(frozen=True)
class Masks:
    """The prover's randomness: two elements per wire, and two for the bits. One proof uses it, once."""

    wires: tuple[tuple[int, ...], tuple[int, ...]]
    bits: tuple[int, int]

    @classmethod
    def fresh(cls, sizes: Sizes) -> Masks:
        """Draw from the operating system."""
        p, c = sizes.field.modulus, sizes.n_wires
        first, second = (tuple(secrets.randbelow(p) for _ in range(c)) for _ in range(2))
        return cls((first, second), (secrets.randbelow(p), secrets.randbelow(p)))


@dataclass(frozen=True)
class Parts:
    """The elements of a proof, or of a share of one, by name: everything that follows is linear in them."""

    bits: list[int]
    """Those with i >= 1, number after number."""
    masks: list[int]
    """s_m, in the order of wires."""
    slopes: list[int]
    """s'_m."""
    squares: list[int]
    """Coefficients of F."""
    bit_masks: list[int]
    """r, r'."""
    quotient: list[int]
    """Coefficients of q."""

    @classmethod
    def cut(cls, proof: Sequence[int], sizes: Sizes) -> Parts:
        """Return the parts of a proof in the order in which it is sent."""
        assert len(proof) == sizes.n_elements
        c, at, parts = sizes.n_wires, 0, []
        sent = sizes.n_bits - sizes.n_rows - 1
        for length in (sent, c, c, 2 * sizes.wire + 3, 2, sizes.bit_domain + 3):
            parts.append(list(proof[at : at + length]))
            at += length
        return cls(*parts)

    def joined(self) -> list[int]:
        """Return the elements in the order in which they are sent."""
        return [*self.bits, *self.masks, *self.slopes, *self.squares, *self.bit_masks, *self.quotient]


def project(x: Sequence[int], rows: Rows, sizes: Sizes) -> list[int]:
    """Return <r_j, x> for each row j, modulo p."""
    row_words, sign_words = rows
    signed = [-value if sign_words[i // 64] >> i % 64 & 1 else value for i, value in enumerate(x)]
    return [
        sum(value for value, word in zip(signed, row_words, strict=True) if word >> j & 1) % sizes.field.modulus
        for j in range(sizes.n_rows)
    ]


def squared_norm(squares: Sequence[int], sizes: Sizes) -> int:
    """Return N_X = N (F_0 + F_N + F_2N), the sum of F over the N-th roots of unity. Linear in F's coefficients."""
    n = sizes.wire
    return n * (squares[0] + squares[n] + squares[2 * n]) % sizes.field.modulus


def all_bits(numbers: Sequence[int], sent: Sequence[int], sizes: Sizes) -> list[int]:
    """Return every bit: those that were sent, and before them the lowest one, derived from its number. Linear."""
    given, found = iter(sent), []
    for number, count in zip(numbers, sizes.bit_counts, strict=True):
        higher = [next(given) for _ in range(count - 1)]
        lowest = number - sum(2**i * bit for i, bit in enumerate(higher, start=1))
        found += [lowest % sizes.field.modulus, *higher]
    return found


def wire_polynomials(x: Sequence[int], masks: Masks, sizes: Sizes) -> Iterator[list[int]]:
    """Yield f_m = f0_m + (x^N - 1)(s_m + s'_m x), where f0_m has the values of wire m on the N-th roots of unity."""
    field, n = sizes.field, sizes.wire
    padded = [*x, *[0] * (sizes.n_wires * n - len(x))]
    for m, mask in enumerate(zip(*masks.wires, strict=True)):
        interpolated = field.interpolate([value % field.modulus for value in padded[m * n : m * n + n]])
        yield field.add(interpolated, field.times_vanishing(mask, n))


def sum_of_squares(x: Sequence[int], masks: Masks, sizes: Sizes) -> list[int]:
    """Return F, the sum of f_m^2: 2N + 3 coefficients."""
    total = [0] * (2 * sizes.wire + 3)
    for wire in wire_polynomials(x, masks, sizes):
        total = sizes.field.add(total, sizes.field.multiply(wire, wire))
    return total


def bit_polynomial(bits: Sequence[int], masks: Masks, sizes: Sizes) -> list[int]:
    """Return u = u0 + (x^n - 1)(r + r' x), where u0 has the bits on the n-th roots of unity, and zeros after them."""
    field, n = sizes.field, sizes.bit_domain
    interpolated = field.interpolate([*bits, *[0] * (n - len(bits))])
    return field.add(interpolated, field.times_vanishing(masks.bits, n))


def bits_of(numbers: Sequence[int], sizes: Sizes) -> list[int]:
    """Return the bits of numbers that fit; raise SilentError if one does not."""
    found = []
    for number, count in zip(numbers, sizes.bit_counts, strict=True):
        if number >> count:
            raise SilentError
        found += [number >> i & 1 for i in range(count)]
    return found


def prove(x: Sequence[int], rows: Rows, sizes: Sizes, masks: Masks) -> list[int]:
    """Return the proof's elements. x: d centred integers. Raise SilentError if X has no proof under these rows."""
    field = sizes.field
    squares = sum_of_squares(x, masks, sizes)
    values = [(v + sizes.window) % field.modulus for v in project(x, rows, sizes)]
    bits = bits_of([*values, (sizes.threshold - squared_norm(squares, sizes)) % field.modulus], sizes)
    u = bit_polynomial(bits, masks, sizes)
    minus_u = [-c % field.modulus for c in u]
    quotient, rest = field.divide_by_vanishing(field.add(field.multiply(u, u), minus_u), sizes.bit_domain)
    assert not any(rest)
    first, second = map(list, masks.wires)
    return Parts(sent_bits(bits, sizes), first, second, squares, list(masks.bits), quotient).joined()


def sent_bits(bits: Sequence[int], sizes: Sizes) -> list[int]:
    """Return the bits without the lowest one of each number."""
    found: list[int] = []
    at = 0
    for count in sizes.bit_counts:
        found += bits[at + 1 : at + count]
        at += count
    return found
