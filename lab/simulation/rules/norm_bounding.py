"""Norm bounding: nobody's update is longer than anybody else's may be."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.errors import ArgumentError
from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector, require_updates
from precad.mpc.prg import RandomBytes


@dataclass(frozen=True, slots=True)
class NormBounding(AggregationRule):
    """The mean of x_i / max(1, ||x_i|| / bound).

    Source: Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019, Sec. 3.
    """

    name: ClassVar[str] = "norm-bounding"

    bound: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ArgumentError(f"bound must be positive and finite, got {self.bound}")

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = os.urandom) -> Vector:
        """Return the mean of the clipped."""
        require_updates(updates, 1, self.name)
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        mean: Vector = (updates / np.maximum(1.0, norms / self.bound)).mean(axis=0)
        return mean
