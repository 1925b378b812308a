"""Gradient noise: the honest update under Gaussian noise of the attacker's choice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.attack import Attack, Knowledge, Vector
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class GradientNoise(Attack):
    """Uploads update + N(0, std^2 I).

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS '17, Sec. 4. They propose Gaussian vectors of standard deviation 200, without the update.
    """

    name: ClassVar[str] = "gradient-noise"

    std: float = 200.0
    """Standard deviation of each coordinate's noise."""

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise ArgumentError(f"std must be positive and finite, got {self.std}")

    def on_update(self, update: Vector) -> Vector:
        """Add fresh noise."""
        return update + np.random.default_rng().normal(0.0, self.std, update.shape)

    def craft(self, known: Knowledge) -> Vector:
        """Add noise that repeats with the simulation."""
        return known.update + known.random.normal(0.0, self.std, known.update.shape)
