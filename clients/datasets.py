"""Labelled images, and how an experiment spreads them over clients."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from clients.errors import ArgumentError

N_CLASSES: Final = 10

_DIGITS_SIDE: Final = 8
_DIGITS_MAX: Final = 16.0
_DIGITS_N_TEST: Final = 360
_DIGITS_SPLIT_SEED: Final = 0


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """n labelled images. A record is one row of `features` together with the label at the same index."""

    features: NDArray[np.float32]
    """Pixels in [0, 1], shape (n, 1, side, side)."""
    labels: NDArray[np.int64]
    """Class of each image, in {0, .., N_CLASSES - 1}, shape (n,)."""

    def __post_init__(self) -> None:
        if self.features.ndim != 4 or self.labels.shape != self.features.shape[:1]:
            raise ArgumentError(
                "features must have shape (n, 1, side, side) and labels (n,), "
                f"got {self.features.shape} and {self.labels.shape}"
            )
        if np.any((self.labels < 0) | (self.labels >= N_CLASSES)):
            raise ArgumentError(f"labels must be in [0, {N_CLASSES - 1}], got one outside")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:  # never a pixel: records are what all of this protects
        return f"Records(n={len(self)}, features={self.features.shape[1:]})"

    def take(self, indices: NDArray[np.int64]) -> "Records":
        """The records at `indices`, in that order, copied."""
        return Records(self.features[indices], self.labels[indices])


@dataclass(frozen=True, slots=True)
class Split:
    """Records to train on, and records kept aside to measure the accuracy."""

    train: Records
    test: Records


def digits(*, side: int = _DIGITS_SIDE) -> Split:
    """The 1797 handwritten digits that come with scikit-learn, 1437 to train and 360 to test; nothing is downloaded.

    The split is stratified by label and always the same. `side` > 8 enlarges the images bilinearly to
    (n, 1, side, side), which is how a model for 28x28 images is tried without a download.
    Raises: ArgumentError if side < 8.
    """
    if side < _DIGITS_SIDE:
        raise ArgumentError(f"side must be >= {_DIGITS_SIDE}, got {side}")
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / _DIGITS_MAX).astype(np.float32).reshape(-1, 1, _DIGITS_SIDE, _DIGITS_SIDE)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=_DIGITS_N_TEST, stratify=labels, random_state=_DIGITS_SPLIT_SEED
    )
    everything = Records(_enlarge(images, side), labels.astype(np.int64))
    return Split(train=everything.take(train), test=everything.take(test))


def _enlarge(images: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """(n, 1, s, s) -> (n, 1, side, side), bilinear: a new pixel is an average of old ones, so it stays in [0, 1]."""
    if images.shape[-1] == side:
        return images
    enlarged = torch.nn.functional.interpolate(
        torch.from_numpy(images), size=(side, side), mode="bilinear", align_corners=False
    )
    return np.asarray(enlarged.numpy(), dtype=np.float32)


def partition(records: Records, n_clients: int, *, seed: int) -> tuple[Records, ...]:
    """`records` dealt i.i.d. to n_clients: disjoint, together everything, sizes differing by at most one.

    Experiments only (real clients bring their own records), hence the plain generator.
    Raises: ArgumentError unless 1 <= n_clients <= len(records).
    """
    if not 1 <= n_clients <= len(records):
        raise ArgumentError(f"n_clients must be in [1, {len(records)}], got {n_clients}")
    shuffled = np.random.default_rng(seed).permutation(len(records))
    return tuple(records.take(part) for part in np.array_split(shuffled, n_clients))
