"""The coordinate-wise median."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector, require_updates
from precad.mpc.prg import RandomBytes


@dataclass(frozen=True, slots=True)
class CoordinateMedian(AggregationRule):
    """In each coordinate the median; the mean of the middle two for an even number.

    Source: Yin, Chen, Kannan and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML '18, Definition 1.
    """

    name: ClassVar[str] = "median"

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = os.urandom) -> Vector:
        """Return the median of each column."""
        require_updates(updates, 1, self.name)
        middle: Vector = np.median(updates, axis=0)
        return middle
