"""Model replacement: one client outvotes all others by scaling its update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class ScaledModelReplacement(Attack):
    """Uploads gamma * update. The norm check is what stops it.

    To turn the global model theta_t into theta*, an attacker of weight w uploads (theta* - theta_t) / (eta w). With
    theta* on the line through its own update, that is the update times a factor, here gamma.
    Source: PRECAD, Sec. 3.2.
    """

    name: ClassVar[str] = "scaled"

    gamma: float = 100.0
    """Factor on the honest update. 100 puts the norm beyond C unless the honest norm is below C / 100."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.gamma):
            raise ArgumentError(f"gamma must be finite, got {self.gamma}")

    def on_update(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return gamma * update, not projected."""
        return self.gamma * update
