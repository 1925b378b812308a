"""NaN: what a program uploads that encodes an update without looking at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack

_CAST: Final = -(2**63)
"""The 64-bit integer that processors make of a NaN ("integer indefinite"); the ring has no NaN of its own."""


@dataclass(frozen=True, slots=True)
class NotANumber(Attack):
    """Every coordinate is -2^63.

    Each of its squares is 2^126, which is zero modulo 2^64: the norm check of Sec. 4.3 in the paper, taken literally
    over Z_2^64, accepts. The servers' rows are 0 or 2^63 each with probability one half, and 2^63 is refused.
    Source: our derivation.
    """

    name: ClassVar[str] = "nan"

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Attack.on_encoded`."""
        return np.full_like(encoded, _CAST)
