"""Labelled records, and the two halves of a data set.

PyTorch is imported by the functions that make tensors, so that a configuration is checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, DataError, RecordRangeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

N_CLASSES: Final = 10
"""Classes of every data set here but EMNIST's with letters. Models have that many logits, and those beyond a data set's
classes stay unused."""

_PIXEL_MAX: Final = 255.0
IMAGE_AXES = 4
NO_CLASS: Final = -100
"""A label of a place in a sequence that is none."""
_LAST_CLASS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """n labelled records. A record is one row of `features` together with the label at the same index."""

    features: NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int64]
    """Images (n, channels, side, side): float32 in [0, 1], or uint8, which stands for value / 255 and takes a quarter
    of the memory. Texts (n, length): int64 tokens. Or numbers of any other shape (n, ..), such as the columns of a
    table: float32."""
    labels: NDArray[Any]
    """Targets of the loss. A class for each record, int64 (n,), 0 or more; a class for each place, int64 (n, t); or
    numbers, float32 (n,) or (n, k)."""

    def __post_init__(self) -> None:
        is_known = self.is_text or self.features.dtype == np.uint8 or self.features.dtype.kind == "f"
        if not is_known or self.features.ndim < 2 or self.labels.ndim < 1 or len(self.labels) != len(self.features):
            raise ArgumentError(
                "features, labels: expected shapes (n, ..), of float32, uint8 or int64, and (n, ..), found "
                f"{self.features.dtype} {self.features.shape} and {self.labels.shape}"
            )
        _require_possible_labels(self.labels)

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
    """Logits of a model for these records: as many as the data set has classes, N_CLASSES at least. For records of the
    client's own, the classes that are known: a model may have more."""
    is_own: bool = False
    """Whether these are records of the client's own."""
    class_names: tuple[str, ...] = ()
    """Class 0, 1, .. as records of the client's own name them; empty where labels are these numbers."""
    columns: tuple[str, ...] = ()
    """Features of a table, in the file's order, where the task names no columns."""
    highest: str = ""
    """File and row of a record of the client's own that has the highest class."""
    held_out: Records | None = None
    """Records of the clients that nobody trains on, on which they evaluate models; None where none are kept."""
    holders: NDArray[np.int64] | None = None
    """The client that each of these is from, by its place among the ids; None where they are dealt."""

    def __post_init__(self) -> None:
        for name, half in (("training half", self.train), ("test half", self.test)):
            if half.labels.dtype == np.int64 and half.labels.ndim == 1:
                require_labels(half.labels, self.n_logits, name)

    def of_classes(self, classes: Sequence[int]) -> Split:
        """Return the records of these classes, labelled as they are. Raises DataError unless both halves have each of
        them, and they are at least two."""
        known = sorted(set(self.train.labels.tolist()) & set(self.test.labels.tolist()))
        if len(set(classes)) < 2 or not set(classes) <= set(known):
            raise DataError(f"classes: expected at least two of {known}, found {list(classes)}")
        train, test = (np.flatnonzero(np.isin(half.labels, classes)) for half in (self.train, self.test))
        users = None if self.users is None else self.users[train]
        return Split(self.train.take(train), self.test.take(test), users, self.n_logits)

    def keeping_aside(self, is_kept: NDArray[np.bool_]) -> Split:
        """Return the split with these of the training half held out. Raises DataError where none is left to train on.

        is_kept: for each record of the training half, (n,).
        """
        if is_kept.all():
            raise DataError("client.holdout: expected a share that leaves a record to train on, found more")
        rest = np.flatnonzero(~is_kept)
        users = None if self.users is None else self.users[rest]
        held_out = self.train.take(np.flatnonzero(is_kept))
        return replace(self, train=self.train.take(rest), users=users, held_out=held_out)


def _require_possible_labels(labels: NDArray[Any]) -> None:
    """Raise ArgumentError for another type; RecordRangeError for a negative class."""
    if labels.dtype == np.float32:
        return
    if labels.dtype != np.int64:
        raise ArgumentError(f"labels: expected int64 classes or float32 numbers, found {labels.dtype}")
    is_class = labels >= 0 if labels.ndim == 1 else by_record(is_class_of_place(labels)).all(axis=1)
    if not is_class.all():
        raise RecordRangeError("labels", int(np.argmin(is_class)), "a label", _LAST_CLASS + 1)


def is_class_of_place(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where labels of several places are classes, or say that a place has none."""
    found: NDArray[np.bool_] = ((labels >= 0) & (labels <= _LAST_CLASS)) | (labels == NO_CLASS)
    return found


def by_record(values: NDArray[Any]) -> NDArray[Any]:
    """Flatten (n, ..) to (n, k)."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def require_labels(labels: NDArray[np.int64], n_classes: int, field: str = "labels") -> None:
    """Raise RecordRangeError, naming the first row, unless all are in {0, .., n_classes - 1}."""
    outside = np.flatnonzero(by_record((labels < 0) | (labels >= n_classes)).any(axis=1))
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
    if records.features.ndim != IMAGE_AXES:
        raise ArgumentError(f"{what}: expected images, found records of shape {records.shape}")


def example(shape: tuple[int, ...], *, is_text: bool) -> Tensor:
    """Return a record's features of that shape, as a model reads them; its values mean nothing."""
    import torch

    return torch.zeros(shape, dtype=torch.int64 if is_text else torch.float32)


def example_of(records: Records) -> Tensor:
    """Return an `example` of the shape that `records` have."""
    return example(records.shape, is_text=records.is_text)


def example_label_of(records: Records) -> Tensor:
    """Return a label of the shape and type that those of `records` have; its value means nothing."""
    import torch

    return torch.from_numpy(np.zeros(records.labels.shape[1:], records.labels.dtype))


def model_inputs(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a model with parameters of `dtype` reads: pixels in [0, 1], or tokens as they are."""
    import torch

    if features.dtype == torch.uint8:
        return features.to(dtype) / _PIXEL_MAX
    return features.to(dtype) if features.is_floating_point() else features


def channels_last(images: Tensor) -> Tensor:
    """Return (n, channels, h, w), laid out pixel by pixel: pooling and patches are several times faster so on a CPU.

    With one channel, `contiguous(memory_format=torch.channels_last)` finds the usual layout good enough, and the
    layers that follow then keep to it; the strides say it plainly here.
    """
    import torch

    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)
