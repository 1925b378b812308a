"""The public parameters of the norm check, and the conditions that its theorem needs.

A vector X of d ring elements is accepted if and only if its centred integer norm satisfies sum X_i^2 <= T. That holds
up to the 2^-64 of the no-wrap test. Everything is computed with integers and rationals, never with floats.

Source: ours, docs/reference/protocol.md, sections 6 and 15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from precad.mpc.errors import ParameterError
from precad.mpc.parameters import DEFAULT_FRAC_BITS, MAX_FRAC_BITS, MODULUS, check_frac_bits

WINDOW_BITS = 29
WINDOW = 1 << WINDOW_BITS
"""b: a row passes when its value lies in [-b, b)."""

DEFAULT_ROWS = 64
MAX_ENCODED_CLIP = 94_000_000
"""C * 2^f at most: an honest client then fails with probability below 2^-40 (section 15)."""


def largest_frac_bits(clip_norm: float) -> int:
    """Return the most fractional bits that this check has for a bound C. Raises ParameterError where it has none."""
    most = MAX_FRAC_BITS
    while most and Fraction(clip_norm) * (1 << most) > MAX_ENCODED_CLIP:
        most -= 1
    return NormBound(clip_norm=clip_norm, dim=1, frac_bits=most).frac_bits


@dataclass(frozen=True)
class NormLimit:
    """The L2 bound C on a vector of `dim` coordinates with `frac_bits` fractional bits, whoever checks it."""

    clip_norm: float
    dim: int
    frac_bits: int

    @property
    def encoded_clip(self) -> Fraction:
        """Return B = C 2^f, exactly."""
        return Fraction(self.clip_norm) * (1 << self.frac_bits)

    @cached_property
    def threshold(self) -> int:
        """T = floor(B^2): the largest accepted sum of squares."""
        return math.floor(self.encoded_clip**2)


@dataclass(frozen=True)
class NormBound(NormLimit):
    """The parameters of the check of tuples.

    Raises ParameterError when C is not positive and finite, or when C * 2^f exceeds 9.4e7 or is below 1. Raises it also
    when d (2b - 1) + b >= 2^64 (the theorem's condition on the dimension), and when another field is out of its range.
    """

    frac_bits: int = DEFAULT_FRAC_BITS
    n_rows: int = DEFAULT_ROWS

    def __post_init__(self) -> None:
        check_frac_bits(self.frac_bits)
        if not 0 < self.clip_norm < math.inf:
            raise ParameterError(f"clip_norm: expected a finite number above 0, found {self.clip_norm}")
        if self.dim < 1:
            raise ParameterError(f"dim: expected at least 1, found {self.dim}")
        if not 1 <= self.n_rows <= DEFAULT_ROWS:
            raise ParameterError(f"n_rows: expected 1 to {DEFAULT_ROWS}, found {self.n_rows}")
        if self.encoded_clip > MAX_ENCODED_CLIP:
            raise ParameterError(
                f"clip_norm * 2^frac_bits: expected at most {MAX_ENCODED_CLIP}, "
                f"found {self.clip_norm} * 2^{self.frac_bits}: lower one of them"
            )
        if self.encoded_clip < 1:
            raise ParameterError(
                f"clip_norm * 2^frac_bits: expected at least 1, found {self.clip_norm} * 2^{self.frac_bits}: "
                f"every update would be encoded as zero"
            )
        if self.dim * (2 * WINDOW - 1) + WINDOW >= MODULUS:
            raise ParameterError(
                f"dim: expected at most {(MODULUS - 1 - WINDOW) // (2 * WINDOW - 1)}, as the no-wrap test needs "
                f"d(2b-1)+b < 2^64, found {self.dim}"
            )

    @cached_property
    def low_bits(self) -> tuple[int, ...]:
        """Return for each word of `words_to_check` the lowest of its top bits: all from there to 63 must be zero.

        30 for a row's v + 2^29; bitlength(T) for T - N.
        """
        return (WINDOW_BITS + 1,) * self.n_rows + (self.threshold.bit_length(),)

    @property
    def words_per_client(self) -> int:
        """Return the words that the comparison gate takes per client: one per row and one for the norm."""
        return self.n_rows + 1

    @property
    def log2_soundness_error(self) -> float:
        """Return log2 of the probability that a longer or wrapping vector is accepted.

        It sums 2^-k for the rows, and a collision of the hash that compares the servers' bits
        (`precad.mpc.gate.equality`).
        """
        return math.log2(2.0**-self.n_rows + (self.words_per_client + 1) * 2.0**-127)

    @property
    def log2_honest_failure(self) -> float:
        """Return log2 of 2k exp(-(b/B)^2), which bounds the chance that an honest vector at the bound is rejected."""
        return math.log2(2 * self.n_rows) - float((WINDOW / self.encoded_clip) ** 2) / math.log(2)
