"""The mean, which a single client can move anywhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector, require_updates
from precad.mpc.prg import RandomBytes


@dataclass(frozen=True, slots=True)
class Mean(AggregationRule):
    """sum_i x_i / m. Source: McMahan et al., 2017, FedAvg with equal weights."""

    name: ClassVar[str] = "mean"

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = os.urandom) -> Vector:
        """Return the arithmetic mean."""
        require_updates(updates, 1, self.name)
        mean: Vector = updates.mean(axis=0)
        return mean
