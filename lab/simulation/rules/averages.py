"""Means and medians, of every coordinate or of whole updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from precad.clients.checks import require_count, require_positive
from precad.clients.errors import ArgumentError
from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector, require_updates
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes


@dataclass(frozen=True, slots=True)
class Mean(AggregationRule):
    """sum_i x_i / m. Source: McMahan et al., 2017, FedAvg with equal weights."""

    name: ClassVar[str] = "mean"

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return the arithmetic mean."""
        require_updates(updates, 1, self.name)
        mean: Vector = updates.mean(axis=0)
        return mean


@dataclass(frozen=True, slots=True)
class CoordinateMedian(AggregationRule):
    """In each coordinate the median; the mean of the middle two for an even number.

    Source: Yin, Chen, Kannan and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML '18, Definition 1.
    """

    name: ClassVar[str] = "median"

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return the median of each column."""
        require_updates(updates, 1, self.name)
        return np.median(updates, axis=0)


@dataclass(frozen=True, slots=True)
class TrimmedMean(AggregationRule):
    """In each coordinate the mean without the floor(beta m) largest and as many smallest values.

    Source: Yin, Chen, Kannan and Bartlett, 2018, Definition 2.
    """

    name: ClassVar[str] = "trimmed-mean"

    beta: float = 0.1
    """Share that is cut off at either end."""

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise ArgumentError(f"beta: expected a number in [0, 1/2), found {self.beta}")

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return the trimmed mean of each column."""
        m = require_updates(updates, 1, self.name)
        cut = math.floor(Fraction(str(self.beta)) * m)  # the decimal that was written: 0.29 * 100 is 28.99.. in binary
        mean: Vector = np.sort(updates, axis=0)[cut : m - cut].mean(axis=0)
        return mean


@dataclass(frozen=True, slots=True)
class NormBounding(AggregationRule):
    """The mean of x_i / max(1, ||x_i|| / bound).

    Source: Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019, Sec. 3.
    """

    name: ClassVar[str] = "norm-bounding"

    bound: float = 1.0

    def __post_init__(self) -> None:
        require_positive("bound", self.bound)

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return the mean of the clipped."""
        require_updates(updates, 1, self.name)
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        mean: Vector = (updates / np.maximum(1.0, norms / self.bound)).mean(axis=0)
        return mean


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
        require_count("iterations", self.iterations, at_least=1)
        require_positive("nu", self.nu)

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
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
