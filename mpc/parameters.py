"""The protocol's public constants and choices, without NumPy: whoever only reads a configuration waits for no array.

The ring is Z_2^64 (`precad.mpc.ring`), and its grid has f fractional bits (`precad.mpc.fixed_point`). A submission has
one of two wire forms (`precad.mpc.sharing`), or comes with a proof (`precad.mpc.proved`).
"""

from __future__ import annotations

import enum
from typing import Final

from precad.mpc.errors import ParameterError

MODULUS = 1 << 64
DEFAULT_FRAC_BITS = 16
MAX_FRAC_BITS = 40
MAX_LAYERS: Final = 1024
"""Layers of a convex set at most. So many more words change the error of the check by less than 2^-116."""
MAX_HALF_SPACES: Final = 16


class Mode(enum.StrEnum):
    """The wire form of a submission."""

    MASKED = "masked"
    SHARES = "shares"
    PROVED = "proved"


PROVED_VERSION: Final = "precad/v2"
"""Version of the protocol in mode `proved`."""
DEALT_MODES: Final = (Mode.MASKED, Mode.SHARES)
"""Modes in which a dealer's tuples serve the check."""


def check_frac_bits(frac_bits: int) -> int:
    """Return `frac_bits` itself. Raises ParameterError outside 0..40: more leaves no clip norm that is of use."""
    if not 0 <= frac_bits <= MAX_FRAC_BITS:
        raise ParameterError(f"frac_bits: expected 0 to {MAX_FRAC_BITS}, found {frac_bits}")
    return frac_bits
