"""Every class of vectors that has one right verdict of the norm check, as ring vectors.

A case's verdict is written down with its class; `squared_norm` decides it a second time, over Python's integers. For d
= 3 some classes do not exist. Four coordinates of 2^31 are left out. A squared norm that is no sum of three squares
(2^64 - 1 for one) is replaced by the largest one below it that is. A repaired vector has one free coordinate.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from precad.mpc.fixed_point import encode_within
from tests.mpc.ring_strategies import as_ring, generator
from tests.mpc.sums_of_squares import is_three_squares, squares, two_squares

FRAC_BITS = 16
HIGH_POWERS = (32, 40, 48, 56, 60, 62, 63)
SOME = 1000
"""Coordinates of an honest update that the widest single attack of the specification overwrites."""


class Case(NamedTuple):
    """A submission and what must become of it."""

    name: str
    vector: np.ndarray
    is_within: bool


def squared_norm(x) -> int:
    """sum x_i^2 over the integers, of the centred representatives."""
    return sum(v * v for v in x.tolist() if v)


def is_accepted_modulo_2_to_the_64(x, threshold: int) -> bool:
    """The printed protocol's check taken literally in the ring: the signed word of X^T X - T is not positive."""
    return (squared_norm(x) - threshold + 2**63) % 2**64 - 2**63 <= 0


def cases(dim: int, clip: float) -> list[Case]:
    """The whole table for one (d, C); the same vectors in every run."""
    maker = CaseMaker(dim, clip)
    within = [Case(name, vector, True) for name, vector in maker.within()]
    beyond = [Case(name, vector, False) for name, vector in (*maker.beyond(), *maker.wrapping(), *maker.repaired())]
    return within + beyond


class CaseMaker:
    """Builds vectors for d coordinates and the bound C at f = 16. `B` is floor(C 2^f), `T` the integer threshold."""

    def __init__(self, dim: int, clip: float) -> None:
        self.dim, self.clip = dim, clip
        self.B = math.floor(Fraction(clip) * 2**FRAC_BITS)
        self.T = math.floor(Fraction(clip) ** 2 * 4**FRAC_BITS)
        self.rng = generator(f"cases {dim} {clip}")

    def within(self) -> Iterator[tuple[str, np.ndarray]]:
        """Honest vectors and vectors at the threshold."""
        level = math.isqrt(self.T // self.dim)
        yield "zero", np.zeros(self.dim, dtype=np.int64)
        yield "one-hot B", self.one_hot(self.B)
        yield "one-hot -B", self.one_hot(-self.B)
        yield "norm^2 = T", self.spread(self.T)
        yield "constant sign", np.full(self.dim, level)
        yield "constant negative sign", np.full(self.dim, -level)
        yield "alternating sign", level * np.where(np.arange(self.dim) % 2, -1, 1)
        yield "random direction of norm C", self.honest()
        yield "random direction of norm C/2", self.honest() // 2

    def beyond(self) -> Iterator[tuple[str, np.ndarray]]:
        """Too long, with a squared norm below 2^64: what the exact comparison is for."""
        yield "one-hot B + 1", self.one_hot(self.B + 1)
        yield "one-hot -(B + 1)", self.one_hot(-self.B - 1)
        yield "norm^2 = T + 1", self.spread(self.T + 1)
        yield "one-hot B and a 1", self.one_hot(self.B) + self.one_hot(1)
        for factor in (1.0001, 2, 100):
            yield f"norm {factor} C", self.direction(factor)
        for name, norm in (
            ("2^63", 2**63),
            ("2^63 + T + 1", 2**63 + self.T + 1),
            ("1.5 * 2^63", 3 * 2**62),
            ("2^64 - 2^53", 2**64 - 2**53),
            ("2^64 - 1", 2**64 - 1),
        ):
            yield f"norm^2 = {name}", self.spread(norm)
        yield "2^31 on two", self.at([0, self.dim - 1], 2**31)

    def wrapping(self) -> Iterator[tuple[str, np.ndarray]]:
        """A squared norm from 2^64 upward: what the rows are for."""
        for j in range(32, 64):
            yield f"2^{j} on one", self.one_hot(2**j)
        everywhere = range(self.dim)
        yield "2^63 on the first", self.at([0], 2**63)
        yield "2^63 on two", self.at([0, self.dim - 1], 2**63)
        yield "2^63 on half", self.at(everywhere[: (self.dim + 1) // 2], 2**63)
        yield "2^63 on all", self.at(everywhere, 2**63)
        yield "2^32 and 3 * 2^32", as_ring([2**32, 3 * 2**32, *[0] * (self.dim - 2)])
        if self.dim >= 4:
            yield "2^31 on four", self.at(everywhere[-4:], 2**31)
        for j in HIGH_POWERS:
            yield f"ones * 2^{j}", self.at(everywhere, 2**j)
            bits = self.rng.integers(0, 2, self.dim)
            bits[0] = 1
            yield f"random bits * 2^{j}", self.at(np.flatnonzero(bits), 2**j)
            yield f"honest + 2^{j} on one", self.honest() + self.one_hot(2**j)
        yield "honest + 2^63 on many", self.honest() + self.at(everywhere[:SOME], 2**63)
        for m in (1, 2, 3, 17):
            for name, s in (("0", 0), ("1", 1), ("T", self.T)):
                yield f"norm^2 = {m} * 2^64 + {name}", self.spread(m * 2**64 + s)

    def repaired(self) -> Iterator[tuple[str, np.ndarray]]:
        """Any payload, with a norm moved to exactly T modulo 2^64."""
        yield "random ring vector, repaired", self.repair(self.rng.integers(-(2**63), 2**63, self.dim, dtype=np.int64))
        yield "boosted update, repaired", self.repair(self.direction(1000))
        yield "update and 2^60 on one, repaired", self.repair(self.honest() + self.at([0], 2**60))

    def at(self, coordinates, value: int) -> np.ndarray:
        """`value` on these coordinates, zero elsewhere."""
        x = np.zeros(self.dim, dtype=np.int64)
        x[list(coordinates)] = as_ring([value])[0]
        return x

    def one_hot(self, value: int) -> np.ndarray:
        """`value` on a random coordinate."""
        return self.at([self.rng.integers(self.dim)], value)

    def direction(self, factor: float) -> np.ndarray:
        """A random direction whose encoded norm is at least factor * C: rounded away from zero."""
        x = self.rng.standard_normal(self.dim)
        x *= factor * self.clip * 2**FRAC_BITS / np.linalg.norm(x)
        return np.copysign(np.ceil(np.abs(x)), x).astype(np.int64)

    def honest(self) -> np.ndarray:
        """A random direction clipped to C and encoded by the honest client's own code."""
        x = self.rng.standard_normal(self.dim)
        x *= self.clip / np.linalg.norm(x)
        return encode_within(x, squared_norm_threshold=self.T, frac_bits=FRAC_BITS)

    def spread(self, norm: int) -> np.ndarray:
        """All coordinates of about one size, and a squared norm of exactly `norm`."""
        n_tail = min(4, self.dim)
        if n_tail == 3:
            norm = next(n for n in range(norm, 0, -1) if is_three_squares(n))
        size = math.isqrt(norm // self.dim)
        body = size * self.rng.choice((-1, 1), self.dim - n_tail)
        tail = squares(norm - (self.dim - n_tail) * size**2, n_tail)
        return np.concatenate([body, as_ring(tail)])

    def repair(self, payload: np.ndarray) -> np.ndarray:
        """`payload` with its last coordinates replaced so that the squared norm is T modulo 2^64.

        Four of them, by Lagrange. For d = 3 two, after counting the first one up until two squares suffice.
        """
        if self.dim > 4:
            rest = (self.T - squared_norm(payload[:-4])) % 2**64
            return np.concatenate([payload[:-4], as_ring(squares(rest, 4))])
        step = 1 << ((self.T & -self.T).bit_length() - 1) // 2  # T = 4^v odd: what is left for two is 7 mod 8 times 4^w
        first = int(payload[0]) // step * step  # unless 2^v divides the first coordinate
        while (pair := two_squares((self.T - first**2) % 2**64)) is None:
            first += step
        return as_ring([first, *pair])
