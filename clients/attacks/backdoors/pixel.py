"""Pixel-pattern backdoor: four white pixels in a corner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.backdoors.pattern import Mask, PatternBackdoor
from precad.clients.attacks.backdoors.replacement import require_positive_count


@dataclass(frozen=True, slots=True)
class PixelBackdoor(PatternBackdoor):
    """A white square in the bottom right corner. Source: PRECAD, Appendix E and Figure 6; Gu et al., "BadNets"."""

    name: ClassVar[str] = "pixel-backdoor"

    side: int = 2
    """Side of the square, in pixels."""

    def __post_init__(self) -> None:
        PatternBackdoor.__post_init__(self)
        require_positive_count("side", self.side)

    def pattern(self, height: int, width: int) -> Mask:
        """Return the last `side` rows and columns."""
        where = np.zeros((height, width), dtype=np.bool_)
        where[-self.side :, -self.side :] = True
        return where
