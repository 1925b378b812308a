"""The client's proof that its vector is short: one message, made after the rows are known.

A wire is a polynomial of degree below N, whose values are N coordinates, plus the mask (x^N - 1)(s + s' x). The proof
holds F, the sum of the wires' squares, whose values on the domain add up to the squared norm. It holds the bits of 65
numbers, and q, which shows that each is 0 or 1. Eight wires at a time are in memory. F needs no rows, and may be
computed before they are known (`ProofMasks.ahead`): nothing of it leaves, so no challenge can depend on it.

Nothing here branches on a value of X, but for the one question whether a row leaves its window: then the client is
silent. Source: docs/reference/protocol-v2.md, section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from precad.mpc.errors import OutsideWindowError, ParameterError
from precad.mpc.kernels import loading
from precad.mpc.local.step import Rows
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.proved import field
from precad.mpc.proved.field import FieldArray, P, transform
from precad.mpc.proved.sizes import N_NUMBERS, N_ROWS, ProofSizes
from precad.mpc.proved.sums import row_values
from precad.mpc.ring import RingArray


@dataclass(frozen=True, slots=True, repr=False)
class ProofMasks:
    """The random elements of one proof. Two proofs with the same ones would differ by what is linear in X."""

    wires: FieldArray
    """s and s', (2, c)."""
    bits: FieldArray
    """r and r', (2,)."""
    squares: Squares | None = None
    """Squares of one vector that `ahead` computed."""

    @classmethod
    def draw(cls, sizes: ProofSizes, random_bytes: RandomBytes = SYSTEM_BYTES) -> ProofMasks:
        """Return fresh ones."""
        elements = field.random_elements(2 * sizes.n_wires + 2, random_bytes)
        return cls(elements[:-2].reshape(2, -1), elements[-2:])

    def ahead(self, x: RingArray, sizes: ProofSizes) -> ProofMasks:
        """Return the same masks, with what a proof of x needs no challenge for. x must not change from then on."""
        return replace(self, squares=squares_of(x, sizes, self))


@dataclass(frozen=True, slots=True, repr=False)
class Squares:
    """The wires' squares of one vector, under one proof's masks: made by `squares_of`."""

    of: RingArray
    """X, (d,)."""
    squared_norm: int
    """Sum of X_i^2, modulo p."""
    coefficients: FieldArray
    """F, of the sum of the masked wires' squares, (2N + 3,)."""


@dataclass(frozen=True, slots=True, repr=False)
class Witness:
    """Facts about X that the proof shows: made by `witness`."""

    numbers: FieldArray
    """V: <r_j, X> + b for 64 rows, and T - sum X_i^2; (65,)."""
    squares: FieldArray
    """F, the coefficients of the sum of the masked wires' squares, (2N + 3,)."""


def prove(x: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
    """Return the proof of an upload for this challenge's rows. Shapes: (d,), (sizes.proof_elements,).

    Raises OutsideWindowError when a number has no such bits. An honest client is silent then, in this round, and never
    draws again: with probability 2^-40. Raises ParameterError for a vector that is longer than C.
    """
    found = witness(x, rows, sizes, masks)
    return assemble(bits_of(found.numbers, sizes), found.squares, sizes, masks)


def prove_low_bits(x: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
    """Return the proof of a client that deviates: of a number that does not fit its bits, the low bits, (elements,).

    It is that of `prove` for a vector that is short enough. For attacks, audits and simulations.
    """
    found = witness(x, rows, sizes, masks)
    fitting = np.full(N_NUMBERS, (1 << sizes.row_bits) - 1, dtype=np.uint64)
    fitting[-1] = (1 << sizes.norm_bits) - 1
    return assemble(bits_of(found.numbers & fitting, sizes), found.squares, sizes, masks)


def witness(x: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> Witness:
    """Return the 65 numbers and F. X: integers of magnitudes up to (p - 1) / 2, of any norm, (d,)."""
    squares = masks.squares
    if squares is None or squares.of is not x:
        squares = squares_of(x, sizes, masks)
    shifted = field.add(row_values(x, rows), np.full(N_ROWS, sizes.window, dtype=np.uint64))
    numbers = np.append(shifted, np.uint64((sizes.threshold - squares.squared_norm) % P))
    return Witness(numbers, squares.coefficients)


def squares_of(x: RingArray, sizes: ProofSizes, masks: ProofMasks) -> Squares:
    """Return what a proof needs no challenge for, most of its cost where d is large. Raises ParameterError."""
    if x.shape != (sizes.dim,) or masks.wires.shape != (2, sizes.n_wires):
        raise ParameterError(f"update: expected {sizes.dim} coordinates and masks of {sizes.n_wires} wires")
    half = transform(sizes.wire_length)
    squares = np.empty((2, sizes.wire_length), dtype=np.uint64)
    tops = np.empty(sizes.n_wires, dtype=np.uint64)
    tables = half.inverse, half.twist, half.forward
    loading.wires().wires(np.ascontiguousarray(x), masks.wires, np.uint64(half.root), *tables, squares, tops)
    squared_norm = field.dot(squares[0], np.ones_like(squares[0]))  # Python's integers take longer, the longer they are
    return Squares(x, squared_norm % P, _norm_polynomial(squares, tops, sizes, masks))


def _norm_polynomial(squares: FieldArray, tops: FieldArray, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
    """Return F, degree 2N + 2, from its values at the 2N-th roots of unity and its three highest coefficients.

    The values give F modulo x^2N - 1: half of them F modulo x^N - 1, half of them F modulo x^N + 1.
    """
    half, (s, s_x) = transform(sizes.wire_length), masks.wires
    even, odd = half.coefficients(squares[0]), half.coset_coefficients(squares[1])
    one_half = (P + 1) // 2
    low, high = field.times(field.add(even, odd), one_half), field.times(field.subtract(even, odd), one_half)
    top_of_wires = pow(sizes.wire_length, -1, P) * field.dot(s_x, tops)
    highest = (field.dot(s, s) + 2 * top_of_wires, 2 * field.dot(s, s_x), field.dot(s_x, s_x))
    above = np.array([value % P for value in highest], dtype=np.uint64)
    coefficients = np.concatenate([low, high, above])
    coefficients[:3] = field.subtract(coefficients[:3], above)
    return coefficients


def bits_of(numbers: FieldArray, sizes: ProofSizes) -> FieldArray:
    """Return the bits of all numbers, lowest first, (L,). Raises OutsideWindowError and ParameterError, as `prove`."""
    row_bits, norm_bits = sizes.row_bits, sizes.norm_bits
    if int(numbers[-1]) >> norm_bits:
        raise ParameterError("update: expected a norm of at most clip_norm")
    if np.any(numbers[:-1] >> np.uint64(row_bits)):
        raise OutsideWindowError("update: expected every row value inside its window; no proof of it leaves")
    rows = numbers[:-1, np.newaxis] >> np.arange(row_bits, dtype=np.uint64)
    norm = numbers[-1] >> np.arange(norm_bits, dtype=np.uint64)
    return np.concatenate([rows.reshape(-1), norm]) & np.uint64(1)


def assemble(bits: FieldArray, squares: FieldArray, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
    """Return the words of the proof: the bits but the lowest of each number, masks, F, and q."""
    sent = np.ones(sizes.n_bits, dtype=bool)
    sent[: N_ROWS * sizes.row_bits + 1 : sizes.row_bits] = False
    quotient = _bit_quotient(bits, sizes, masks)
    return np.concatenate([bits[sent], masks.wires.reshape(-1), squares, masks.bits, quotient])


def _bit_quotient(bits: FieldArray, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
    """Return q = (u^2 - u) / (x^n - 1), degree n + 2, for bits that are 0 or 1.

    Let u = v + (x^n - 1) R, with v of degree below n and R = r + r' x. Let v^2 = low + x^n high. Then
    q = high + (2 v - 1) R + (x^n - 1) R^2. On the coset, where x^n is -1, v^2 has the values of low - high. For bits
    low + high is v.
    """
    n, (r, r_x) = sizes.bit_domain, (int(value) for value in masks.bits)
    domain = transform(n)
    v = domain.coefficients(np.concatenate([bits, np.zeros(n - bits.size, dtype=np.uint64)]))
    values = domain.coset_values(v)
    difference = domain.coset_coefficients(_squares(values))
    doubled = field.add(v, v)
    doubled[0] = (int(doubled[0]) - 1) % P
    q = np.zeros(n + 3, dtype=np.uint64)
    q[:n] = field.add(field.times(field.subtract(v, difference), (P + 1) // 2), field.times(doubled, r))
    q[1 : n + 1] = field.add(q[1 : n + 1], field.times(doubled, r_x))
    square = np.array([r * r % P, 2 * r * r_x % P, r_x * r_x % P], dtype=np.uint64)
    q[n:] = field.add(q[n:], square)
    q[:3] = field.subtract(q[:3], square)
    return q


def _squares(x: FieldArray) -> FieldArray:
    """Return each element's square."""
    out = np.empty_like(x)
    loading.prime_field().squares(x, out)
    return out
