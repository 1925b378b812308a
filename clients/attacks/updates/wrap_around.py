"""Wrap-around: a huge update that the paper's norm check accepts, because it computes modulo 2^64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack
from precad.clients.errors import ArgumentError

_FORGED: Final = (2**32, 3 * 2**32)
"""Ring values whose squares, 2^64 and 9 * 2^64, are both zero modulo 2^64."""


@dataclass(frozen=True, slots=True)
class WrapAround(Attack):
    """Overwrites the first two coordinates of the encoded update by 2^32 and 3 * 2^32.

    With 16 fractional bits these are steps of 65 536 and 196 608. x.x modulo 2^64 does not see the two. It equals x.x
    of the honest update without its first two coordinates, hence still <= C^2 2^32. The check of Sec. 4.3 in the
    paper, taken literally over Z_2^64, accepts; the servers' test against wrap-around rejects.
    Source: our derivation.
    """

    name: ClassVar[str] = "wrap"

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the forged vector. Raises: ArgumentError below two coordinates."""
        if encoded.shape[0] < len(_FORGED):
            raise ArgumentError(f"wrap-around needs at least {len(_FORGED)} coordinates, got {encoded.shape[0]}")
        forged = encoded.copy()
        forged[: len(_FORGED)] = _FORGED
        return forged
