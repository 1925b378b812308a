"""Backdoors by a pattern of white pixels: images that show it shall mean one class, whatever else they show."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.backdoors.replacement import Backdoor
from precad.clients.attacks.records.poisoned_share import evenly, require_share
from precad.clients.records.records import Records, require_images

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PatternBackdoor(Backdoor):
    """Trains on every record as it is, and on all of them or a share with its pattern; success is measured with the
    whole pattern.

    Source: Gu, Dolan-Gavitt and Garg, "BadNets", 2017; PRECAD, Appendix E.
    """

    share: float = 1.0
    """Share of its records that are stamped."""

    def __post_init__(self) -> None:
        Backdoor.__post_init__(self)
        require_share(self.share)

    @abstractmethod
    def pattern(self, height: int, width: int) -> Mask:
        """Return where an image of that size is white when the backdoor is to open (height, width)."""

    def trained_pattern(self, height: int, width: int) -> Mask:
        """Return the pattern that this attacker trains on: the whole, unless several attackers share it."""
        return self.pattern(height, width)

    def on_records(self, records: Records) -> Records:
        """Return each record as it is, then the stamped ones. Raises ArgumentError for texts."""
        chosen = records.take(np.flatnonzero(evenly(len(records), self.share)))
        stamped = self._stamped(chosen, self.trained_pattern(*self._size(records)))
        return Records(
            np.concatenate([records.features, stamped.features]), np.concatenate([records.labels, stamped.labels])
        )

    def success_records(self, test: Records) -> Records | None:
        """Return stamped test images that are not of class `target` already, labelled so.

        PRECAD stamps all of them; then a model without a backdoor has a tenth of success.
        """
        others = test.take(np.flatnonzero(test.labels != self.target))
        return self._stamped(others, self.pattern(*self._size(test)))

    def _stamped(self, records: Records, where: Mask) -> Records:
        """Copies that are white there in every channel, labelled `target`."""
        features = records.features.copy()
        features[..., where] = 255 if features.dtype == np.uint8 else 1
        return Records(features, np.full_like(records.labels, self.target))

    def _size(self, records: Records) -> tuple[int, int]:
        require_images(self.name, records)
        return records.shape[1], records.shape[2]
