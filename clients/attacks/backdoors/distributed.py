"""DBA, the distributed backdoor: every attacker trains on a part of the pattern, and the whole opens the door."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from precad.clients.attacks.backdoors.pattern import Mask
from precad.clients.attacks.backdoors.replacement import require_positive_count
from precad.clients.attacks.backdoors.triangle import TriangleBackdoor
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class DistributedBackdoor(TriangleBackdoor):
    """The triangle, its pixels row by row cut into `parts` pieces; attacker i stamps piece i modulo `parts`.

    Source: Xie, Huang, Chen and Li, "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR '20. The
    pattern is that of Xie et al., CCS '23, who cut it into 4 for 4 attackers.
    """

    name: ClassVar[str] = "distributed-backdoor"

    parts: int = 4
    part: int = 0
    """This attacker's."""

    def __post_init__(self) -> None:
        TriangleBackdoor.__post_init__(self)
        require_positive_count("parts", self.parts)
        if isinstance(self.part, bool) or not isinstance(self.part, int) or not 0 <= self.part < self.parts:
            raise ArgumentError(f"part must be in [0, {self.parts - 1}], got {self.part}")

    def of_attacker(self, i: int) -> Self:
        """Give attacker i a part of its own."""
        return replace(self, part=i % self.parts)

    def trained_pattern(self, height: int, width: int) -> Mask:
        """Return the attacker's part. Raises ArgumentError where the pattern has fewer pixels than parts."""
        whole = np.flatnonzero(self.pattern(height, width))
        if len(whole) < self.parts:
            raise ArgumentError(f"parts must be at most the {len(whole)} pixels of the pattern, got {self.parts}")
        where = np.zeros(height * width, dtype=np.bool_)
        where[np.array_split(whole, self.parts)[self.part]] = True
        return where.reshape(height, width)
