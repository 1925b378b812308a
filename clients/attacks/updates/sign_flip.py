"""Sign flip: the honest update, backwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.attack import Attack, Vector
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class SignFlip(Attack):
    """Uploads -factor * update: with factor 1 a bit flip that no norm check can see.

    Source: Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods", AAAI '19.
    """

    name: ClassVar[str] = "sign-flip"

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ArgumentError(f"factor must be positive and finite, got {self.factor}")

    def on_update(self, update: Vector) -> Vector:
        """Return -factor * update."""
        return -self.factor * update
