"""Gaussian feature noise: images far outside what images are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records, pixels, require_images


@dataclass(frozen=True, slots=True)
class GaussianFeatures(Attack):
    """Adds N(0, std^2) to every pixel, which is in [0, 1], and crops nothing; labels stay.

    Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications
    to Private and Robust Machine Learning", NeurIPS '22, Sec. 5.1. Their feature corruption is N(0, 100), of which
    we read 100 as the variance.
    """

    name: ClassVar[str] = "gaussian-features"

    std: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise ArgumentError(f"std must be positive and finite, got {self.std}")

    def of_attacker(self, i: int) -> Self:
        """Give attacker i noise of its own."""
        return replace(self, seed=self.seed + i)

    def on_records(self, records: Records) -> Records:
        """Add noise to each image, drawn once and for all; labels stay. Raises ArgumentError for texts."""
        require_images(self.name, records)
        noise = np.random.default_rng(self.seed).normal(0.0, self.std, records.features.shape)
        return Records((pixels(records) + noise).astype(np.float32), records.labels.copy())
