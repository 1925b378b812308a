"""Bulyan: Krum selects, a trimmed mean around the median averages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.lab.simulation.rules.krum import krum_scores, order_by_score
from precad.lab.simulation.rules.rule import (
    AggregationRule,
    Updates,
    Vector,
    require_count,
    require_updates,
    squared_distances,
)
from precad.mpc.prg import RandomBytes


@dataclass(frozen=True, slots=True)
class Bulyan(AggregationRule):
    """Take theta = m - 2f updates one by one, by Krum among those left. In each coordinate, average the beta =
    theta - 2f values that are closest to their median. m >= 4f + 3.

    Source: El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML '18.
    """

    name: ClassVar[str] = "bulyan"

    f: int = 1

    def __post_init__(self) -> None:
        require_count("f", self.f)

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = os.urandom) -> Vector:
        """Raises ArgumentError for fewer than 4f + 3 updates."""
        m = require_updates(updates, 4 * self.f + 3, self.name)
        squared, left = squared_distances(updates), list(range(m))
        chosen: list[int] = []
        while len(chosen) < m - 2 * self.f:
            scores = krum_scores(squared[np.ix_(left, left)], self.f) if len(left) > 1 else np.zeros(1)
            best = left[int(order_by_score(updates[left], scores)[0])]
            chosen.append(best)
            left.remove(best)
        selected = np.sort(updates[chosen], axis=0)
        beta = len(chosen) - 2 * self.f
        distance = np.abs(selected - np.median(selected, axis=0))
        nearest = np.argsort(distance, axis=0, kind="stable")[:beta]
        mean: Vector = np.take_along_axis(selected, nearest, axis=0).mean(axis=0)
        return mean
