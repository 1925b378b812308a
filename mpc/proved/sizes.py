"""The public parameters of a proof, and the conditions that its theorems need: integers and rationals, never floats.

An upload X of d elements is valid if and only if sum X_i^2 <= T over the integers, up to the soundness error. X is cut
into c wires of N coordinates. The proof shows 65 numbers by their bits: 64 row values, shifted by b, and T - sum X_i^2.

Source: docs/reference/protocol-v2.md, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import NormLimit
from precad.mpc.parameters import MAX_FRAC_BITS, check_frac_bits
from precad.mpc.proved.field import ELEMENT_BYTES, P

N_ROWS = 64
N_NUMBERS = N_ROWS + 1
N_POINTS = 2
MAX_DIM = 1 << 30
MAX_CLIENTS = 1 << 20
MAX_WINDOW_BITS = 25
MIN_NOISE, MAX_NOISE = 8, 1 << 40
_MIN_WIRE = 16


def _fits(encoded_clip: Fraction, window_bits: int) -> bool:
    """Tell whether b = 2^w is at least 5.71 B, so that an honest row leaves the window with 2^-40 for all rows."""
    return 100 * (1 << window_bits) >= 571 * encoded_clip


def largest_frac_bits(clip_norm: float) -> int:
    """Return the most fractional bits that mode `proved` has for this norm, which cost the least accuracy.

    Raises ParameterError where there are none: C is above 5 876 432, or not positive and finite.
    """
    clip = _exact(clip_norm)
    for frac_bits in range(MAX_FRAC_BITS, -1, -1):
        if _fits(clip * (1 << frac_bits), MAX_WINDOW_BITS):
            return frac_bits
    raise ParameterError(
        f"clip_norm: expected at most {100 * (1 << MAX_WINDOW_BITS) // 571} in mode 'proved', found {clip_norm}: "
        f"lower clip_norm"
    )


def check_round(n_clients: int, noise: float) -> None:
    """Raise ParameterError unless the noisy sum of a round fits into the field, whatever is drawn.

    noise: the standard deviation of one server's noise in units of 2^-f; 0 where servers add none.
    """
    if not 0 <= n_clients <= MAX_CLIENTS:
        raise ParameterError(
            f"clients: expected at most {MAX_CLIENTS} enrolled in mode 'proved', found {n_clients}: enrol fewer clients"
        )
    if noise != 0 and not MIN_NOISE <= noise <= MAX_NOISE:
        raise ParameterError(
            f"noise_multiplier: expected a server's noise of {MIN_NOISE} to 2^40 units of 2^-frac_bits, found {noise}: "
            f"{'lower' if noise > MAX_NOISE else 'raise'} noise_multiplier or frac_bits"
        )


def _exact(clip_norm: float) -> Fraction:
    if not 0 < clip_norm < math.inf:
        raise ParameterError(f"clip_norm: expected a finite number above 0, found {clip_norm}")
    return Fraction(clip_norm)


@dataclass(frozen=True)
class ProofSizes(NormLimit):
    """The sizes of uploads and proofs for norm C, d coordinates and f fractional bits.

    Raises ParameterError, naming the field and what to lower, where a condition of docs/reference/protocol-v2.md,
    section 4, fails.
    """

    def __post_init__(self) -> None:
        check_frac_bits(self.frac_bits)
        if not 1 <= self.dim <= MAX_DIM:
            raise ParameterError(f"dim: expected 1 to {MAX_DIM} in mode 'proved', found {self.dim}: lower dim")
        most = largest_frac_bits(self.clip_norm)
        if self.encoded_clip < 1:
            raise ParameterError(
                f"frac_bits: expected clip_norm * 2^frac_bits of at least 1, found {self.clip_norm} * "
                f"2^{self.frac_bits}: every update would be zero; raise frac_bits"
            )
        if self.frac_bits > most:
            raise ParameterError(
                f"frac_bits: expected at most {most} with clip_norm {self.clip_norm} in mode 'proved', "
                f"found {self.frac_bits}: lower frac_bits or clip_norm"
            )
        if 449 * self.window**2 + 10 * (1 << self.norm_bits) > 10 * P:
            raise ParameterError(f"clip_norm: expected 44.9 b^2 + 2^{self.norm_bits} of at most p: lower clip_norm")
        if self.dim * (2 * self.window - 1) + self.window >= P:
            raise ParameterError(
                f"dim: expected at most {(P - 1 - self.window) // (2 * self.window - 1)} with clip_norm "
                f"{self.clip_norm} and frac_bits {self.frac_bits}, found {self.dim}: lower frac_bits"
            )

    @cached_property
    def window_bits(self) -> int:
        """Return w, the smallest integer with 100 2^w >= 571 B."""
        return next(w for w in range(MAX_WINDOW_BITS + 1) if _fits(self.encoded_clip, w))

    @property
    def window(self) -> int:
        """Return b = 2^w: an honest row value is in [-b, b)."""
        return 1 << self.window_bits

    @property
    def row_bits(self) -> int:
        """Return the bits of a row value plus b: w + 1."""
        return self.window_bits + 1

    @property
    def norm_bits(self) -> int:
        """Return the bits of T - sum X_i^2: the bit length of T."""
        return self.threshold.bit_length()

    @cached_property
    def wire_length(self) -> int:
        """N, the smallest power of two, at least 16, with N^2 >= d."""
        length = _MIN_WIRE
        while length**2 < self.dim:
            length *= 2
        return length

    @property
    def n_wires(self) -> int:
        """Return c = ceil(d / N)."""
        return -(-self.dim // self.wire_length)

    @property
    def n_bits(self) -> int:
        """Return L, the bits of all 65 numbers."""
        return N_ROWS * self.row_bits + self.norm_bits

    @cached_property
    def bit_domain(self) -> int:
        """Return n, the smallest power of two that is at least L."""
        return 1 << (self.n_bits - 1).bit_length()

    @cached_property
    def parts(self) -> tuple[int, int, int, int, int, int]:
        """Return the lengths of a proof's parts, in its order: bits that are sent, s, s', F, (r, r'), q."""
        sent = self.n_bits - N_NUMBERS
        return (sent, self.n_wires, self.n_wires, 2 * self.wire_length + 3, 2, self.bit_domain + 3)

    @property
    def proof_elements(self) -> int:
        """Return the length of a proof: L + 2c + 2N + n - 57."""
        return sum(self.parts)

    @property
    def opened_elements(self) -> int:
        """Return the elements that a server sends for one client and one point: c + 3."""
        return self.n_wires + 3

    @property
    def upload_bytes(self) -> int:
        """Return the length of an upload's payload, 7d."""
        return ELEMENT_BYTES * self.dim

    @property
    def proof_bytes(self) -> int:
        """Return the length of a proof's payload."""
        return ELEMENT_BYTES * self.proof_elements

    @property
    def log2_soundness_error(self) -> float:
        """Return log2 of Theorem 1's bound on a wrong acceptance, without what the streams cost."""
        admissible = P - self.wire_length - self.bit_domain - 1
        norm, bits = ((2 * size + 2) / admissible for size in (self.wire_length, self.bit_domain))
        return math.log2(2.0**-N_ROWS + norm**2 + bits**2)

    @property
    def log2_honest_failure(self) -> float:
        """Return log2 of the bound 128 exp(-(b / B)^2) on an honest client's silence."""
        return math.log2(2 * N_ROWS) - float((self.window / self.encoded_clip) ** 2) / math.log(2)
