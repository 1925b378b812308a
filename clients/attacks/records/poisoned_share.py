"""How many of an attacker's records are poisoned, and which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError


def require_share(share: float) -> None:
    """Raises ArgumentError unless it is in (0, 1]."""
    if not 0 < share <= 1:
        raise ArgumentError(f"share must be in (0, 1], got {share}")


def evenly(n: int, share: float) -> NDArray[np.bool_]:
    """Return round(share n) of n, as far from each other as can be, whatever the order of records means; (n,)."""
    chosen = round(share * n)
    return np.diff(np.arange(n + 1) * chosen // max(n, 1)) > 0
