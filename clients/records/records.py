"""Labelled records, and the two halves of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from precad.clients.errors import ArgumentError, DataError, RecordRangeError

N_CLASSES: Final = 10
"""Classes of every data set here but EMNIST's with letters. Models have that many logits, and those beyond a data set's
classes stay unused."""
MAX_CLASSES: Final = 62
"""Classes of EMNIST's digits, capital and small letters."""

_PIXEL_MAX: Final = 255.0
_IMAGE_AXES, _TOKEN_AXES = 4, 2


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """n labelled records. A record is one row of `features` together with the label at the same index."""

    features: NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int64]
    """Images (n, channels, side, side): float32 in [0, 1], or uint8, which stands for value / 255 and takes a quarter
    of the memory. Or texts (n, length): int64 tokens."""
    labels: NDArray[np.int64]
    """Class of each record, in {0, .., MAX_CLASSES - 1}, shape (n,)."""

    def __post_init__(self) -> None:
        is_tokens = self.features.ndim == _TOKEN_AXES and self.is_text
        if not (is_tokens or self.features.ndim == _IMAGE_AXES) or self.labels.shape != self.features.shape[:1]:
            raise ArgumentError(
                "features must have shape (n, channels, side, side), or (n, length) if int64 tokens, and labels (n,); "
                f"got {self.features.shape} and {self.labels.shape}"
            )
        require_labels(self.labels, MAX_CLASSES)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:  # never a pixel: records are what all of this protects
        return f"Records(n={len(self)}, features={self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one record's features."""
        return self.features.shape[1:]

    @property
    def is_text(self) -> bool:
        """Tell whether the features are tokens."""
        return bool(self.features.dtype == np.int64)

    def take(self, indices: NDArray[np.int64]) -> Records:
        """Return the records at `indices`, in that order, copied."""
        return Records(self.features[indices], self.labels[indices])


@dataclass(frozen=True, slots=True)
class Split:
    """Records to train on, and records kept aside to measure the accuracy."""

    train: Records
    test: Records
    users: NDArray[np.int64] | None = None
    """The user that each training record is from, where the data set knows; (n,)."""
    n_logits: int = N_CLASSES
    """Logits of a model for these records: as many as the data set has classes, N_CLASSES at least."""

    def __post_init__(self) -> None:
        for name, half in (("training half", self.train), ("test half", self.test)):
            require_labels(half.labels, self.n_logits, name)

    def of_classes(self, classes: Sequence[int]) -> Split:
        """The records of these classes, labelled as they are. Raises DataError unless both halves have each of them,
        and they are at least two."""
        known = sorted(set(self.train.labels.tolist()) & set(self.test.labels.tolist()))
        if len(set(classes)) < 2 or not set(classes) <= set(known):
            raise DataError(f"classes: expected at least two of {known}, found {list(classes)}")
        train, test = (np.flatnonzero(np.isin(half.labels, classes)) for half in (self.train, self.test))
        users = None if self.users is None else self.users[train]
        return Split(self.train.take(train), self.test.take(test), users, self.n_logits)


def require_labels(labels: NDArray[np.int64], n_classes: int, field: str = "labels") -> None:
    """Raise RecordRangeError, naming the first row, unless all are in {0, .., n_classes - 1}."""
    outside = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(outside):
        raise RecordRangeError(field, int(outside[0]), "a label", n_classes)


def joined(parts: Sequence[Records]) -> Records:
    """Return all of them, in order; itself where there is one. Images of both kinds become float32."""
    if len(parts) == 1:
        return parts[0]
    is_mixed = len({part.features.dtype for part in parts}) > 1
    features = np.concatenate([pixels(part) if is_mixed else part.features for part in parts])
    return Records(features, np.concatenate([part.labels for part in parts]))


def pixels(images: Records) -> NDArray[np.float32]:
    """Return the pixels that the features of images stand for, float32."""
    if images.features.dtype == np.uint8:
        return images.features.astype(np.float32) / np.float32(_PIXEL_MAX)
    return images.features.astype(np.float32)


def require_images(what: str, records: Records) -> None:
    """Raises ArgumentError for texts."""
    if records.features.ndim != _IMAGE_AXES:
        raise ArgumentError(f"{what} needs images, got records of shape {records.shape}")


def example(shape: tuple[int, ...], *, is_text: bool) -> Tensor:
    """Return a record's features of that shape, as a model reads them; its values mean nothing."""
    return torch.zeros(shape, dtype=torch.int64 if is_text else torch.float32)


def example_of(records: Records) -> Tensor:
    """Return an `example` of the shape that `records` have."""
    return example(records.shape, is_text=records.is_text)


def model_inputs(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a model with parameters of `dtype` reads: pixels in [0, 1], or tokens as they are."""
    if features.dtype == torch.uint8:
        return features.to(dtype) / _PIXEL_MAX
    return features.to(dtype) if features.is_floating_point() else features


def channels_last(images: Tensor) -> Tensor:
    """Return (n, channels, h, w), laid out pixel by pixel: pooling and patches are several times faster so on a CPU.

    With one channel, `contiguous(memory_format=torch.channels_last)` finds the usual layout good enough, and the
    layers that follow then keep to it; the strides say it plainly here.
    """
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)
