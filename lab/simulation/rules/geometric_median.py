"""RFA: the geometric median, by the smoothed Weiszfeld iteration."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.errors import ArgumentError
from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector, require_count, require_updates
from precad.mpc.prg import RandomBytes


@dataclass(frozen=True, slots=True)
class GeometricMedian(AggregationRule):
    """argmin_v sum_i ||v - x_i||, by v <- sum_i b_i x_i / sum_i b_i with b_i = 1 / max(nu, ||v - x_i||), from the mean.

    Source: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022, Algorithm 2,
    with equal weights. The paper finds 3 to 5 iterations enough; here they go on to `iterations` or until v moves by
    less than nu.
    """

    name: ClassVar[str] = "geometric-median"

    iterations: int = 100
    nu: float = 1e-6
    """Smoothing, relative to the median distance from the coordinate-wise median, which a minority cannot stretch."""

    def __post_init__(self) -> None:
        require_count("iterations", self.iterations, least=1)
        if not 0 < self.nu < math.inf:
            raise ArgumentError(f"nu must be positive and finite, got {self.nu}")

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = os.urandom) -> Vector:
        """Return the smoothed median."""
        require_updates(updates, 1, self.name)
        v: Vector = updates.mean(axis=0)
        middle: Vector = np.median(updates, axis=0)
        floor = self.nu * float(np.median(np.linalg.norm(updates - middle, axis=1)))
        if floor == 0:  # more than half are the same, and that is the geometric median
            return middle
        for _ in range(self.iterations):
            weights = 1.0 / np.maximum(np.linalg.norm(updates - v, axis=1), floor)
            moved = weights @ updates / weights.sum()
            step, v = float(np.linalg.norm(moved - v)), moved
            if step < floor:
                break
        return v
