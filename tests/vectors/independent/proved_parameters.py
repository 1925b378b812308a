"""Section 4 of `docs/reference/protocol-v2.md`: every size of a proof from d, T and b, and the conditions on a task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tests.vectors.independent.proved_field import FIELD, Field
from tests.vectors.independent.ring import RefusedError

N_ROWS = 64
LARGEST_WINDOW_BITS = 25


@dataclass(frozen=True)
class Sizes:
    """The sizes of one task's proofs. The document's letters are in the properties' docstrings.

    The last three fields differ from their defaults in tests of a tiny field alone.
    """

    dim: int
    threshold: int
    window_bits: int
    n_rows: int = N_ROWS
    least_wire: int = 16
    field: Field = FIELD

    @property
    def window(self) -> int:
        """Return b: a row's value must be in [-b, b)."""
        return 1 << self.window_bits

    @property
    def row_bits(self) -> int:
        """Return the number of bits of a row's value plus b, l in the document."""
        return self.window_bits + 1

    @property
    def norm_bits(self) -> int:
        """Return the bit length of T."""
        return self.threshold.bit_length()

    @property
    def bit_counts(self) -> list[int]:
        """Return the number of bits of each checked number: the rows, then T minus the squared norm."""
        return [self.row_bits] * self.n_rows + [self.norm_bits]

    @property
    def wire(self) -> int:
        """Return N, the number of coordinates of one wire: the smallest power of two with N^2 >= d."""
        length = self.least_wire
        while length**2 < self.dim:
            length *= 2
        return length

    @property
    def n_wires(self) -> int:
        """Return c."""
        return -(-self.dim // self.wire)

    @property
    def n_bits(self) -> int:
        """Return L, the number of all bits, derived ones included."""
        return sum(self.bit_counts)

    @property
    def bit_domain(self) -> int:
        """Return n, the smallest power of two that holds all bits."""
        return 1 << (self.n_bits - 1).bit_length()

    @property
    def n_elements(self) -> int:
        """Return the length of a proof in elements."""
        sent_bits = self.n_bits - self.n_rows - 1
        return sent_bits + 2 * self.n_wires + (2 * self.wire + 3) + 2 + (self.bit_domain + 3)

    @property
    def message_elements(self) -> int:
        """Return the length of a verifier message in elements."""
        return 2 * (self.n_wires + 3)


def sizes(clip_norm: float, frac_bits: int, dim: int) -> Sizes:
    """Return a task's sizes; refuse (`parameter`) what section 4's conditions exclude. Exact in the float64 C."""
    if not (0 <= frac_bits <= 40 and 0 < clip_norm < math.inf and 1 <= dim <= 2**30):
        raise RefusedError("parameter")
    bound = Fraction(clip_norm) * 2**frac_bits
    window_bits = 0
    while 100 * 2**window_bits < 571 * bound and window_bits <= LARGEST_WINDOW_BITS:
        window_bits += 1
    found = Sizes(dim, math.floor(bound**2), window_bits)
    b, p = found.window, FIELD.modulus
    if bound < 1 or window_bits > LARGEST_WINDOW_BITS or dim * (2 * b - 1) + b >= p:
        raise RefusedError("parameter")
    if 449 * b**2 + 10 * 2**found.norm_bits > 10 * p:
        raise RefusedError("parameter")
    return found
