"""The coordinate-wise trimmed mean."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from precad.clients.errors import ArgumentError
from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector, require_updates
from precad.mpc.prg import RandomBytes


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
            raise ArgumentError(f"beta must be in [0, 1/2), got {self.beta}")

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = os.urandom) -> Vector:
        """Return the trimmed mean of each column."""
        m = require_updates(updates, 1, self.name)
        cut = math.floor(Fraction(str(self.beta)) * m)  # the decimal that was written: 0.29 * 100 is 28.99.. in binary
        mean: Vector = np.sort(updates, axis=0)[cut : m - cut].mean(axis=0)
        return mean
