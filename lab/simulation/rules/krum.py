"""Krum, Multi-Krum and Bulyan: the updates that are closest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.checks import require_count
from precad.clients.errors import ArgumentError
from precad.clients.training.distances import squared_distances
from precad.lab.simulation.rules.rule import (
    AggregationRule,
    Updates,
    Vector,
    require_updates,
)
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes


def krum_scores(squared: Updates, f: int) -> Vector:
    """Return s(i) = sum of ||x_i - x_j||^2 over the m - f - 2 nearest j != i, at least one of them. (m, m) -> (m,)."""
    m = len(squared)
    n_near = max(1, m - f - 2)
    others = squared + np.diag(np.full(m, np.inf))
    scores: Vector = np.sort(others, axis=1)[:, : min(n_near, m - 1)].sum(axis=1)
    return scores


def order_by_score(updates: Updates, scores: Vector) -> NDArray[np.int64]:
    """Return rows from the best on; equal scores by content, never by who sent them."""
    return np.array(sorted(range(len(updates)), key=lambda i: (scores[i], updates[i].tobytes())), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Krum(AggregationRule):
    """The update with the least score, for f attackers at most; its guarantee needs m >= 2f + 3.

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS '17.
    """

    name: ClassVar[str] = "krum"

    f: int = 1
    """Attackers among a round's updates, at most."""

    def __post_init__(self) -> None:
        require_count("f", self.f)

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return argmin_x s(x)."""
        require_updates(updates, 1, self.name)
        best = order_by_score(updates, krum_scores(squared_distances(updates), self.f))[0]
        chosen: Vector = updates[best].copy()
        return chosen


@dataclass(frozen=True, slots=True)
class MultiKrum(AggregationRule):
    """The mean of the `keep` updates with the least scores; `keep` is m - f unless given. Source: as Krum."""

    name: ClassVar[str] = "multi-krum"

    f: int = 1
    keep: int | None = None

    def __post_init__(self) -> None:
        require_count("f", self.f)
        if self.keep is not None:
            require_count("keep", self.keep, at_least=1)

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Raises ArgumentError unless keep <= m."""
        m = require_updates(updates, 1, self.name)
        keep = max(1, m - self.f) if self.keep is None else self.keep
        if keep > m:
            raise ArgumentError(f"updates: expected at least {keep}, which multi-krum keeps, found {m}")
        order = order_by_score(updates, krum_scores(squared_distances(updates), self.f))
        mean: Vector = updates[order[:keep]].mean(axis=0)
        return mean


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

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
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
