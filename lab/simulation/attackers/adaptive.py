"""The attacker who knows the norm check: the worst vector that it accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.attack import Attack, Knowledge, Vector, require_honest, within
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class MaximalDirection(Attack):
    """Upload -C s / ||s||, s the sum of the honest updates. Of all vectors in the ball, this one takes most from the
    round's progress along s.

    Where nobody bounds updates it takes `reach` times the longest honest update for C.
    Source: our derivation (Cauchy-Schwarz).
    """

    name: ClassVar[str] = "adaptive"
    is_simulated_only: ClassVar[bool] = True

    reach: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.reach < math.inf:
            raise ArgumentError(f"reach must be positive and finite, got {self.reach}")

    def craft(self, known: Knowledge) -> Vector:
        """Return the antipode of the honest sum, on the sphere."""
        require_honest(self.name, known)
        total = known.honest.sum(axis=0)
        norm = float(np.linalg.norm(total))
        if norm == 0:
            return np.zeros_like(known.update)
        length = known.bound
        if math.isinf(length):
            length = self.reach * float(np.linalg.norm(known.honest, axis=1).max())
        return within(total * (-length / norm), known.bound)
