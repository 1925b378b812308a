"""Feature noise: what the client trains on is hardly to be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records, require_images

_WHITE: Final = 255.0


@dataclass(frozen=True, slots=True)
class FeatureNoise(Attack):
    """Adds uniform noise from [-reach, reach] to every pixel, which is in [0, 1], and crops to [0, 1]; labels stay.

    Source: the noisy clients of Munoz-Gonzalez, Co and Lupu, "Byzantine-Robust Federated Machine Learning through
    Adaptive Model Averaging", 2019; the default reach is ours.
    """

    name: ClassVar[str] = "feature-noise"

    reach: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.reach < math.inf:
            raise ArgumentError(f"reach must be positive and finite, got {self.reach}")

    def of_attacker(self, i: int) -> Self:
        """Give attacker i noise of its own."""
        return replace(self, seed=self.seed + i)

    def on_records(self, records: Records) -> Records:
        """Add noise to each image, drawn once and for all; labels stay. Raises ArgumentError for texts."""
        require_images(self.name, records)
        is_bytes = records.features.dtype == np.uint8
        noise = np.random.default_rng(self.seed).uniform(-self.reach, self.reach, records.features.shape)
        noisy = np.clip(records.features / (_WHITE if is_bytes else 1.0) + noise, 0.0, 1.0)
        features = np.round(noisy * _WHITE).astype(np.uint8) if is_bytes else noisy.astype(np.float32)
        return Records(features, records.labels.copy())
