"""Random label flipping: noise in place of knowledge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.clients.records.records import N_CLASSES, Records, require_labels


@dataclass(frozen=True, slots=True)
class RandomLabels(Attack):
    """Gives every record another label, each of the wrong ones with equal probability, once and for all.

    Source: Biggio, Nelson and Laskov, "Support Vector Machines Under Adversarial Label Noise", ACML '11, its random
    flips, with more than two classes.
    """

    name: ClassVar[str] = "random-labels"

    seed: int = 0
    """Seed of the flips."""

    def of_attacker(self, i: int) -> Self:
        """Give attacker i flips of its own: where everybody has one record, the same flip would be no random one."""
        return replace(self, seed=self.seed + i)

    def on_records(self, records: Records) -> Records:
        """Return the same features, every label wrong. Raises ArgumentError for data sets of more than ten classes."""
        require_labels(records.labels, N_CLASSES)
        shift = np.random.default_rng(self.seed).integers(1, N_CLASSES, size=len(records))
        return Records(records.features, (records.labels + shift) % N_CLASSES)
