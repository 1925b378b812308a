"""Inner-product manipulation: make the aggregate point away from the honest mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.attack import Attack, Knowledge, Vector, require_honest, within
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class InnerProductManipulation(Attack):
    """Every attacker uploads -epsilon times the mean of the honest updates. (This epsilon is no privacy parameter.)

    It takes a small epsilon against Krum, one above (n - m) / m against the mean.
    Source: Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI
    '19, Sec. 4.
    """

    name: ClassVar[str] = "inner-product"
    is_simulated_only: ClassVar[bool] = True

    factor: float = 0.5
    """The source's epsilon."""

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ArgumentError(f"factor must be positive and finite, got {self.factor}")

    def craft(self, known: Knowledge) -> Vector:
        """Return -epsilon * mean."""
        require_honest(self.name, known)
        opposite: Vector = -self.factor * known.honest.mean(axis=0)
        return within(opposite, known.bound)
