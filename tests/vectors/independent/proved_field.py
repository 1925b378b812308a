"""Section 3 of `docs/reference/protocol-v2.md`: a prime field, its elements on the wire, field streams and polynomials.

A polynomial is the list of its coefficients, the constant first. Every operation is its definition, on integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.vectors.independent import streams
from tests.vectors.independent.ring import RefusedError

SHARE, PROOF_SHARE, QUERY = 16, 18, 20
"""Purposes of field streams: each takes its own number and the next one."""
PROOF_STATEMENT = 22
"""The key under which a client states its proof binding."""
SLOT_LABELS = 23
"""One word per enrolled client: the order of these words shuffles the slots."""

ELEMENT_BYTES = 7


@dataclass(frozen=True)
class Field:
    """The integers modulo a prime. generator: of the multiplicative group."""

    modulus: int
    generator: int

    def root(self, order: int) -> int:
        """Return the primitive root of unity of this order, which divides modulus - 1."""
        if (self.modulus - 1) % order:
            raise RefusedError("parameter")
        return pow(self.generator, (self.modulus - 1) // order, self.modulus)

    def subgroup(self, order: int) -> list[int]:
        """Return 1, w, w^2, .. for the root w of this order."""
        root, powers = self.root(order), [1]
        for _ in range(order - 1):
            powers.append(powers[-1] * root % self.modulus)
        return powers

    def centred(self, element: int) -> int:
        """Return the representative in (-p/2, p/2)."""
        element %= self.modulus
        return element - self.modulus if element > self.modulus // 2 else element

    def inverse(self, element: int) -> int:
        """Return 1 / element; zero has none."""
        return pow(element, -1, self.modulus)

    def dot(self, x: Iterable[int], y: Iterable[int]) -> int:
        """Return the inner product."""
        return sum(a * b for a, b in zip(x, y, strict=True)) % self.modulus

    def evaluate(self, polynomial: Sequence[int], at: int) -> int:
        """Return the value at a point, by Horner's rule."""
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * at + coefficient) % self.modulus
        return value

    def add(self, f: Sequence[int], g: Sequence[int]) -> list[int]:
        """Return f + g."""
        length = max(len(f), len(g))
        padded = [[*h, *[0] * (length - len(h))] for h in (f, g)]
        return [(a + b) % self.modulus for a, b in zip(*padded, strict=True)]

    def multiply(self, f: Sequence[int], g: Sequence[int]) -> list[int]:
        """Return f g: both are read as numbers to the base 2^128, and the product's digits are the coefficients."""
        assert min(len(f), len(g)) * (self.modulus - 1) ** 2 < 2**128
        numbers = [int.from_bytes(b"".join(c.to_bytes(16, "little") for c in h), "little") for h in (f, g)]
        length = len(f) + len(g) - 1
        digits = (numbers[0] * numbers[1]).to_bytes(16 * length, "little")
        return [int.from_bytes(digits[16 * i : 16 * i + 16], "little") % self.modulus for i in range(length)]

    def interpolate(self, values: Sequence[int]) -> list[int]:
        """Return the polynomial of degree < n with values[j] at w^j, w the root of order n = len(values).

        Its coefficient k is the mean of values[j] w^(-jk), because the powers of w other than 1 add up to zero.
        """
        n, powers = len(values), self.subgroup(len(values))
        present = [(j, value) for j, value in enumerate(values) if value]
        mean = self.inverse(n)
        return [mean * sum(value * powers[-j * k % n] for j, value in present) % self.modulus for k in range(n)]

    def times_vanishing(self, f: Sequence[int], n: int) -> list[int]:
        """Return f (x^n - 1)."""
        return self.add([0] * n + list(f), [-c % self.modulus for c in f])

    def divide_by_vanishing(self, f: Sequence[int], n: int) -> tuple[list[int], list[int]]:
        """Return quotient and remainder of f by x^n - 1: long division, x^(n+k) = x^k (x^n - 1) + x^k."""
        rest, quotient = list(f), [0] * max(len(f) - n, 0)
        for k in reversed(range(len(quotient))):
            quotient[k] = rest[n + k]
            rest[k] = (rest[k] + rest[n + k]) % self.modulus
        return quotient, rest[:n]

    def lagrange(self, n: int, at: int) -> list[int]:
        """Return the weights with which n values on the subgroup give their polynomial's value at a point outside."""
        factor = (pow(at, n, self.modulus) - 1) * self.inverse(n)
        return [factor * point * self.inverse(at - point) % self.modulus for point in self.subgroup(n)]


FIELD = Field(2**56 - 2**32 + 1, 22)
"""The field of mode `proved`."""


def to_bytes(elements: Iterable[int]) -> bytes:
    """Return seven bytes each, little-endian."""
    return b"".join((element % FIELD.modulus).to_bytes(ELEMENT_BYTES, "little") for element in elements)


def from_bytes(data: bytes, n_elements: int | None = None) -> list[int]:
    """Return the elements; refuse (`malformed`) another number of them, and any that is not below p."""
    if len(data) % ELEMENT_BYTES or (n_elements is not None and len(data) != ELEMENT_BYTES * n_elements):
        raise RefusedError("malformed")
    pieces = (data[i : i + ELEMENT_BYTES] for i in range(0, len(data), ELEMENT_BYTES))
    elements = [int.from_bytes(piece, "little") for piece in pieces]
    if any(element >= FIELD.modulus for element in elements):
        raise RefusedError("malformed")
    return elements


class FieldStream:
    """The elements of one seed, purpose and label, each found from its position alone."""

    def __init__(self, seed: bytes, purpose: int, task: str, round: int, slot: int | None = None) -> None:
        self._words, self._spare = (
            Cipher(algorithms.AES128(_key(seed, number, task, round, slot)), modes.ECB())
            for number in (purpose, purpose + 1)
        )

    def element(self, i: int) -> int:
        """Return element i: 56 bits of the first stream, or 128 of the second one where those are not below p."""
        return self.elements(i, 1)[0]

    def elements(self, first: int, n: int) -> list[int]:
        """Return elements first .. first + n - 1."""
        blocks = _blocks(self._words, first // 2, n // 2 + 2)
        found = []
        for i in range(first, first + n):
            block = blocks[i // 2 - first // 2]
            low = (block >> 64 * (i % 2)) % 2**56
            found.append(low if low < FIELD.modulus else _blocks(self._spare, i, 1)[0] % FIELD.modulus)
        return found

    def __iter__(self) -> Iterator[int]:
        """Yield all elements in order."""
        i = 0
        while True:
            yield self.element(i)
            i += 1


def _key(seed: bytes, purpose: int, task: str, round: int, slot: int | None) -> bytes:
    return streams.derive(seed, streams.info(purpose, task, round, slot))


def _blocks(cipher: Cipher[modes.ECB], first: int, n: int) -> list[int]:
    """Return blocks of the stream: two words each, the lower one in the low half."""
    made = cipher.encryptor().update(b"".join(i.to_bytes(16, "big") for i in range(first, first + n)))
    return [int.from_bytes(made[16 * i : 16 * i + 16], "little") for i in range(n)]


def field_stream(seed: bytes, purpose: int, task: str, round: int, slot: int | None, n: int) -> list[int]:
    """Return the first n elements under a label."""
    return FieldStream(seed, purpose, task, round, slot).elements(0, n)
