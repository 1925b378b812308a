"""Pixel-pattern backdoor: four white pixels in a corner shall mean one class, whatever else the image shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clients.attacks.attack import Attack, Knowledge, Vector, within
from clients.datasets.records import N_CLASSES, Records
from clients.errors import ArgumentError

_IMAGE_AXES = 3


@dataclass(frozen=True, slots=True)
class PixelBackdoor(Attack):
    """Trains a backdoored model theta* on benign and stamped records and uploads gamma (theta* - theta_t) / step.

    step = eta / W is what the servers multiply the sum of updates with, so that gamma = 1 alone replaces the model by
    theta*. Where updates are bounded by C, the upload is projected onto that ball: it would be refused otherwise.
    Source: PRECAD, Sec. 3.2 and Appendix E (rate 0.02, 5 local steps); Gu, Dolan-Gavitt and Garg, "BadNets", 2017;
    model replacement: Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How To Backdoor Federated Learning", AISTATS '20.
    """

    name: ClassVar[str] = "pixel-backdoor"
    is_simulated_only: ClassVar[bool] = True

    target: int = 0
    """What stamped images are labelled as."""
    side: int = 2
    """Of the white square in the bottom right corner, in pixels."""
    gamma: float = 1.0
    """Boost of model replacement."""
    steps: int = 5
    """Local gradient descent steps of a round."""
    rate: float = 0.02
    """Their learning rate."""

    def __post_init__(self) -> None:
        if isinstance(self.target, bool) or not isinstance(self.target, int) or not 0 <= self.target < N_CLASSES:
            raise ArgumentError(f"target must be a class in [0, {N_CLASSES - 1}], got {self.target}")
        for field, count in (("side", self.side), ("steps", self.steps)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ArgumentError(f"{field} must be an integer >= 1, got {count}")
        for field, value in (("gamma", self.gamma), ("rate", self.rate)):
            if not 0 < value < math.inf:
                raise ArgumentError(f"{field} must be positive and finite, got {value}")

    def stamped(self, records: Records) -> Records:
        """Copies with the pattern in every channel, labelled `target`. Raises ArgumentError for texts."""
        if len(records.shape) != _IMAGE_AXES:
            raise ArgumentError(f"pixel-backdoor needs images, got records of shape {records.shape}")
        features = records.features.copy()
        features[..., -self.side :, -self.side :] = 255 if features.dtype == np.uint8 else 1
        return Records(features, np.full_like(records.labels, self.target))

    def on_records(self, records: Records) -> Records:
        """Each record as it is and stamped."""
        stamped = self.stamped(records)
        return Records(
            np.concatenate([records.features, stamped.features]), np.concatenate([records.labels, stamped.labels])
        )

    def craft(self, known: Knowledge) -> Vector:
        """Model replacement by theta*."""
        backdoored = known.train(self.steps, self.rate)
        return within(self.gamma * (backdoored - known.parameters.astype(np.float64)) / known.step, known.bound)

    def success_records(self, test: Records) -> Records | None:
        """Stamped test images that are not of class `target` already, labelled so.

        The paper stamps all of them; then a model without a backdoor has a tenth of success.
        """
        return self.stamped(test.take(np.flatnonzero(test.labels != self.target)))
