"""Poisoned instances: an attacker puts records into the set of a client that follows the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.clients.attacks.backdoors.replacement import require_positive_count
from precad.clients.attacks.backdoors.triangle import TriangleBackdoor
from precad.clients.attacks.records.label_flip import LabelFlip
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records, joined

AIMS: Final = (LabelFlip.name, TriangleBackdoor.name)
"""Aims of poisoned records: records of one class are labelled 0, or stamped records are."""


@dataclass(frozen=True, slots=True)
class PoisonedRecords(Attack):
    """The client's own records stay, and the first `records` of them that the aim can use join as poisoned copies.

    Its client clips and adds noise as everybody does: what attacks is the records, whose influence is what a guarantee
    of single records bounds. The number that the client declared stays as it was.
    Source: Xie et al., "Unraveling the Connections between Privacy and Certified Robustness in Federated Learning
    Against Poisoning Attacks", CCS '23. Their Sec. 6.1.3 injects k instances into one user's data.
    """

    name: ClassVar[str] = "poisoned-records"
    is_simulated_only: ClassVar[bool] = True

    aim: str = LabelFlip.name
    """One of `AIMS`."""
    records: int = 10
    """k."""
    source: int = 1
    """The class that label flipping takes; it means nothing for stamped ones."""

    def __post_init__(self) -> None:
        if self.aim not in AIMS:
            raise ArgumentError(f"aim must be one of {', '.join(AIMS)}, got {self.aim}")
        require_positive_count("records", self.records)
        LabelFlip(source=self.source)  # refuses what is no class

    @property
    def follows_protocol(self) -> bool:
        """See Attack."""
        return True

    def on_records(self, records: Records) -> Records:
        """Return all of them, then the k poisoned ones. Raises ArgumentError where fewer than k can be made."""
        poisoned = self.success_records(records)
        if poisoned is None or len(poisoned) < self.records:
            found = 0 if poisoned is None else len(poisoned)
            raise ArgumentError(
                f"records must be at most the {found} of the client that can be poisoned, got {self.records}"
            )
        return joined([records, poisoned.take(np.arange(self.records))])

    def success_records(self, test: Records) -> Records | None:
        """Return the success records of the aim."""
        aim: Attack = LabelFlip(source=self.source) if self.aim == LabelFlip.name else TriangleBackdoor()
        return aim.success_records(test)
