"""Triangle backdoor: a white triangle in a corner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.backdoors.pattern import Mask, PatternBackdoor
from precad.clients.attacks.backdoors.replacement import require_positive_count


@dataclass(frozen=True, slots=True)
class TriangleBackdoor(PatternBackdoor):
    """A white right triangle in the lower right corner. Its size is drawn in the source, not printed; 5 is ours.

    Source: Xie, Long, Chen, Li, Chen and Li, "Unraveling the Connections between Privacy and Certified Robustness in
    Federated Learning Against Poisoning Attacks", CCS '23 (BKD).
    """

    name: ClassVar[str] = "triangle-backdoor"

    legs: int = 5
    """Both of its legs, in pixels."""

    def __post_init__(self) -> None:
        PatternBackdoor.__post_init__(self)
        require_positive_count("legs", self.legs)

    def pattern(self, height: int, width: int) -> Mask:
        """Pixels less than `legs` steps, down and right together, from the corner."""
        rows, columns = np.indices((height, width))
        where: Mask = (height - 1 - rows) + (width - 1 - columns) < self.legs
        return where
