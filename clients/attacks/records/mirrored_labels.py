"""Targeted label flipping of every class: the first is taught to be the last, and so on inwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.attack import Attack
from precad.clients.records.records import N_CLASSES, Records, require_labels


@dataclass(frozen=True, slots=True)
class MirroredLabels(Attack):
    """Labels every record of class y as 9 - y.

    Source: Wang, Mahloujifar, Wang, Jia and Mittal, "Renyi Differential Privacy of Propose-Test-Release and
    Applications to Private and Robust Machine Learning", NeurIPS '22, B.3. They mirror EMNIST's 26 classes.
    """

    name: ClassVar[str] = "mirrored-labels"

    def on_records(self, records: Records) -> Records:
        """Return the same features with labels 9 - y. Raises ArgumentError for data sets of more than ten classes."""
        require_labels(records.labels, N_CLASSES)
        return Records(records.features, N_CLASSES - 1 - records.labels)
