"""Attackers that change the records that they train on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack, Vector
from precad.clients.checks import is_number, require_class, require_count, require_positive, shown
from precad.clients.errors import ArgumentError
from precad.clients.records.records import N_CLASSES, Records, pixels, require_images, require_labels


def require_share(share: float) -> None:
    """Raises ArgumentError unless it is in (0, 1]."""
    if not is_number(share) or not 0 < share <= 1:
        raise ArgumentError(f"share: expected a number in (0, 1], found {shown(share)}")


def evenly(n: int, share: float) -> NDArray[np.bool_]:
    """Return round(share n) of n, as far from each other as can be, whatever the order of records means; (n,)."""
    chosen = round(share * n)
    return np.diff(np.arange(n + 1) * chosen // max(n, 1)) > 0


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
        require_positive("reach", self.reach)
        require_count("seed", self.seed)

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
        require_positive("std", self.std)
        require_count("seed", self.seed)

    def of_attacker(self, i: int) -> Self:
        """Give attacker i noise of its own."""
        return replace(self, seed=self.seed + i)

    def on_records(self, records: Records) -> Records:
        """Add noise to each image, drawn once and for all; labels stay. Raises ArgumentError for texts."""
        require_images(self.name, records)
        noise = np.random.default_rng(self.seed).normal(0.0, self.std, records.features.shape)
        return Records((pixels(records) + noise).astype(np.float32), records.labels.copy())


@dataclass(frozen=True, slots=True)
class LabelFlip(Attack):
    """Labels records of class `source` as `target`, all of them or a share; the rest of its records it trains on
    honestly.

    Source: Tolpegin, Truex, Gursoy and Liu, "Data Poisoning Attacks Against Federated Learning Systems", ESORICS '20.
    The flip of 1 to 0 on MNIST is Xie et al.'s, "Unraveling the Connections between Privacy and Certified
    Robustness in Federated Learning", CCS '23.
    """

    name: ClassVar[str] = "label-flip"

    source: int = 1
    target: int = 0
    gamma: float = 1.0
    """Factor on the update of what it trained on. Xie et al.'s model replacement has 50."""
    share: float = 1.0
    """Share of its records of class `source` that are flipped."""

    def __post_init__(self) -> None:
        require_class("source", self.source, N_CLASSES)
        require_class("target", self.target, N_CLASSES)
        if self.source == self.target:
            raise ArgumentError(f"target: expected another class than source, found {self.target} for both")
        require_positive("gamma", self.gamma)
        require_share(self.share)

    def on_records(self, records: Records) -> Records:
        """Return the same features, with label `target` in place of `source` for a share of that class."""
        labels, of_source = records.labels.copy(), np.flatnonzero(records.labels == self.source)
        labels[of_source[evenly(len(of_source), self.share)]] = self.target
        return Records(records.features, labels)

    def on_update(self, update: Vector) -> Vector:
        """Return gamma * update, not projected."""
        return self.gamma * update

    def success_records(self, test: Records) -> Records | None:
        """Return test records of class `source`, labelled `target`."""
        wanted = test.take(np.flatnonzero(test.labels == self.source))
        return Records(wanted.features, np.full_like(wanted.labels, self.target))


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


@dataclass(frozen=True, slots=True)
class RandomLabels(Attack):
    """Gives every record another label, each of the wrong ones with equal probability, once and for all.

    Source: Biggio, Nelson and Laskov, "Support Vector Machines Under Adversarial Label Noise", ACML '11, its random
    flips, with more than two classes.
    """

    name: ClassVar[str] = "random-labels"

    seed: int = 0
    """Seed of the flips."""

    def __post_init__(self) -> None:
        require_count("seed", self.seed)

    def of_attacker(self, i: int) -> Self:
        """Give attacker i flips of its own: where everybody has one record, the same flip would be no random one."""
        return replace(self, seed=self.seed + i)

    def on_records(self, records: Records) -> Records:
        """Return the same features, every label wrong. Raises ArgumentError for data sets of more than ten classes."""
        require_labels(records.labels, N_CLASSES)
        shift = np.random.default_rng(self.seed).integers(1, N_CLASSES, size=len(records))
        return Records(records.features, (records.labels + shift) % N_CLASSES)
