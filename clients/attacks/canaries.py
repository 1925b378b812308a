"""Audit clients of a simulation, and the canaries that they hold (`precad.clients.auditing`).

An audit client is a member of the task that everybody sees. Which of its canaries are among its records is decided by
fair coins that the auditor keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack, Vector
from precad.clients.auditing.head import canary_records
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records
from precad.clients.training.conduct import Conduct
from precad.mpc import fixed_point
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class RealRecords(Attack):
    """Train on records of the data set that the auditor knows, and keep each update. All else is the protocol's."""

    name: ClassVar[str] = "real-records"

    records: Records = field(repr=False)
    updates: list[Vector] = field(default_factory=list, repr=False)
    """(d,) for every update, as it goes into the encoding."""

    def on_records(self, records: Records) -> Records:
        """Return the auditor's records."""
        return self.records

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Encode as an honest client, and keep the update."""
        self.updates[:] = [update.copy()]
        return Conduct.encode(self, update, task)


@dataclass(frozen=True, slots=True, eq=False)
class Canaries(Attack):
    """Train on canaries alone, and keep what was uploaded at their places. All else is the protocol's."""

    name: ClassVar[str] = "canaries"

    places: NDArray[np.int64]
    """(k,): which of the m canaries are this client's."""
    coins: NDArray[np.bool_] = field(repr=False)
    """(k,): which of them are among its records."""
    head: slice
    """Where the m parameters are in the task's vector."""
    uploads: list[Vector] = field(default_factory=list, repr=False)
    """(k,) for every encoded update: its coordinates, in the aggregate's unit."""

    def __post_init__(self) -> None:
        if self.places.shape != self.coins.shape or self.places.ndim != 1:
            raise ArgumentError(f"coins: expected the shape of places, {self.places.shape}, found {self.coins.shape}")

    def on_records(self, records: Records) -> Records:
        """Return the canaries whose coin says so. Raises ArgumentError for texts."""
        return canary_records(self.places[self.coins], records)

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Encode as an honest client, and keep what the canaries added."""
        encoded = Conduct.encode(self, update, task)
        self.uploads.append(fixed_point.decode(encoded[self.head][self.places], task.frac_bits))
        return encoded
