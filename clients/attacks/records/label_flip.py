"""Targeted label flipping: one class is taught to be another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.attack import Attack, Vector
from precad.clients.attacks.records.poisoned_share import evenly, require_share
from precad.clients.errors import ArgumentError
from precad.clients.records.records import N_CLASSES, Records


@dataclass(frozen=True, slots=True)
class LabelFlip(Attack):
    """Labels records of class `source` as `target`, all of them or a share; the rest of its records it trains on
    honestly.

    Source: Tolpegin, Truex, Gursoy and Liu, "Data Poisoning Attacks Against Federated Learning Systems", ESORICS '20.
    The flip of 1 to 0 on MNIST is Xie et al.'s, "Unraveling the Connections between Privacy and Certified
    Robustness in Federated Learning", CCS '23.
    """

    name: ClassVar[str] = "label-flip"

    source: int = 1
    target: int = 0
    gamma: float = 1.0
    """Factor on the update of what it trained on. Xie et al.'s model replacement has 50."""
    share: float = 1.0
    """Share of its records of class `source` that are flipped."""

    def __post_init__(self) -> None:
        for field, value in (("source", self.source), ("target", self.target)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < N_CLASSES:
                raise ArgumentError(f"{field} must be a class in [0, {N_CLASSES - 1}], got {value}")
        if not 0 < self.gamma < math.inf:
            raise ArgumentError(f"gamma must be positive and finite, got {self.gamma}")
        require_share(self.share)

    def on_records(self, records: Records) -> Records:
        """Return the same features, with label `target` in place of `source` for a share of that class."""
        labels, of_source = records.labels.copy(), np.flatnonzero(records.labels == self.source)
        labels[of_source[evenly(len(of_source), self.share)]] = self.target
        return Records(records.features, labels)

    def on_update(self, update: Vector) -> Vector:
        """Return gamma * update, not projected."""
        return self.gamma * update

    def success_records(self, test: Records) -> Records | None:
        """Return test records of class `source`, labelled `target`."""
        wanted = test.take(np.flatnonzero(test.labels == self.source))
        return Records(wanted.features, np.full_like(wanted.labels, self.target))
