"""Losses of single records, by name or as a function of the user's own.

    cross-entropy        classes, int64 (n,); outputs (n, classes), two classes or more
    binary               classes 0 and 1, int64 (n,); outputs (n,) or (n, 1), the logit of class 1
    multi-label          0.0 or 1.0 for each label, float32 (n, k); outputs (n, k)
    mse, huber           values, float32 (n,) or (n, k); outputs of as many numbers a record
    token-cross-entropy  a class for each place, int64 (n, t), -100 where none is meant; outputs (n, t, classes)
    module:function      of (model, record), where a record is (features, target), a batch of one; a single number

A record's loss is what PyTorch's loss of that name gives, with its default mean, for a batch of this record alone. A
batch's loss is the sum. No record's term depends on another record, so each has a gradient of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from precad.clients.errors import ArgumentError, ExtensionError, TargetError, UnknownNameError
from precad.clients.models.extension import imported
from precad.clients.models.outputs import outputs_of
from precad.clients.records.records import by_record, require_labels

Shape = tuple[int, ...]
Labels = NDArray[np.int64] | NDArray[np.float32]
IGNORED: Final = -100
"""A token's class that stands for none, as in PyTorch."""


class Loss(ABC):
    """The loss of each record of a batch."""

    name: str
    takes_batches: ClassVar[bool] = True
    """Whether one call of the model serves several records."""

    @abstractmethod
    def each(self, model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every record, (n,)."""

    def total(self, model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the records."""
        return self.each(model, features, targets).sum()

    @property
    def wants_numbers(self) -> bool | None:
        """Tell whether targets are numbers and no classes; None where nobody knows."""
        return None

    def misfit(self, outputs: Shape) -> str:
        """Return which outputs of a record are expected, where those of this shape do not do; else nothing."""
        return ""

    def require_targets(self, labels: Labels, outputs: Shape, field: str) -> None:
        """Refuse labels that the loss has no meaning for, given the shape of a record's outputs.

        Raises: TargetError, RecordRangeError, which name the field and the first row, and no value.
        """
        return


class _OfOutputs(Loss):
    """A loss that reads what the model gives for a whole batch."""

    targets_dtype: ClassVar[type[np.generic]] = np.int64

    @property
    def wants_numbers(self) -> bool:
        """See Loss."""
        return self.targets_dtype is np.float32

    def each(self, model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        return self.of_outputs(outputs_of(model(features)), targets)

    @abstractmethod
    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every record, (n,)."""

    def require_targets(self, labels: Labels, outputs: Shape, field: str) -> None:
        """See Loss."""
        if labels.dtype != self.targets_dtype:
            expected = np.dtype(self.targets_dtype).name
            raise TargetError(field, f"expected {expected} for the loss {self.name!r}, found {labels.dtype.name}")
        self.require_values(labels, outputs, field)

    @abstractmethod
    def require_values(self, labels: Any, outputs: Shape, field: str) -> None:
        """Refuse values and shapes. Raises as `require_targets`."""


class CrossEntropy(_OfOutputs):
    """Classes from two on."""

    name = "cross-entropy"

    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def total(self, model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        return functional.cross_entropy(outputs_of(model(features)), targets, reduction="sum")

    def misfit(self, outputs: Shape) -> str:
        """See Loss."""
        return "" if len(outputs) == 1 and outputs[0] >= 2 else "logits (classes,), of two classes or more"

    def require_values(self, labels: NDArray[np.int64], outputs: Shape, field: str) -> None:
        """See Loss."""
        _require_shape(labels, (), self.name, field)
        require_labels(labels, outputs[0], field)


class Binary(_OfOutputs):
    """Two classes, one logit."""

    name = "binary"

    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        logits = outputs.reshape(len(targets))
        return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")

    def misfit(self, outputs: Shape) -> str:
        """See Loss."""
        return "" if outputs in ((), (1,)) else "a single logit"

    def require_values(self, labels: NDArray[np.int64], outputs: Shape, field: str) -> None:
        """See Loss."""
        _require_shape(labels, (), self.name, field)
        require_labels(labels, 2, field)


class MultiLabel(_OfOutputs):
    """Labels that a record has or has not, each by itself."""

    name = "multi-label"
    targets_dtype = np.float32

    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        losses = functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
        return losses.mean(dim=1)

    def misfit(self, outputs: Shape) -> str:
        """See Loss."""
        return "" if len(outputs) == 1 else "logits (labels,)"

    def require_values(self, labels: NDArray[np.float32], outputs: Shape, field: str) -> None:
        """See Loss."""
        _require_shape(labels, outputs, self.name, field)
        _require_each(labels, np.isin(labels, (0.0, 1.0)), "0 or 1", field)


class _Distance(_OfOutputs):
    """Between numbers: outputs and targets may be shaped otherwise, if they are as many."""

    targets_dtype = np.float32

    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        wanted = targets.to(outputs.dtype).reshape(len(targets), -1)
        return self.distances(outputs.reshape(wanted.shape), wanted).mean(dim=1)

    @abstractmethod
    def distances(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every number, (n, k)."""

    def require_values(self, labels: NDArray[np.float32], outputs: Shape, field: str) -> None:
        """See Loss."""
        expected, found = math.prod(outputs), math.prod(labels.shape[1:])
        if expected != found:
            raise TargetError(field, f"expected {expected} a record, as many as the model's outputs, found {found}")
        _require_each(labels, np.isfinite(labels), "finite numbers", field)


class MeanSquaredError(_Distance):
    """Squares of differences."""

    name = "mse"

    def distances(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        return functional.mse_loss(outputs, targets, reduction="none")


class Huber(_Distance):
    """Squares up to 1, and straight beyond."""

    name = "huber"

    def distances(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        return functional.huber_loss(outputs, targets, reduction="none")


class TokenCrossEntropy(_OfOutputs):
    """A class for every place of a sequence; the mean over the places that have one, 0 where none has."""

    name = "token-cross-entropy"

    def of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See Loss."""
        losses = functional.cross_entropy(outputs.movedim(-1, 1), targets, ignore_index=IGNORED, reduction="none")
        return losses.sum(dim=1) / (targets != IGNORED).sum(dim=1).clamp(min=1)

    def misfit(self, outputs: Shape) -> str:
        """See Loss."""
        return "" if len(outputs) == 2 and outputs[1] >= 2 else "logits (places, classes), of two classes or more"

    def require_values(self, labels: NDArray[np.int64], outputs: Shape, field: str) -> None:
        """See Loss."""
        _require_shape(labels, outputs[:1], self.name, field)
        require_labels(np.where(labels == IGNORED, 0, labels), outputs[1], field)


class OwnLoss(Loss):
    """A user's function of (model, record)."""

    takes_batches = False

    def __init__(self, function: Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor], name: str) -> None:
        self._function, self.name = function, name

    def each(self, model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        """See Loss. Raises ValueError unless the function gives a single number, and whatever the function raises."""
        return torch.stack([self._one(model, features[i : i + 1], targets[i : i + 1]) for i in range(len(features))])

    def _one(self, model: nn.Module, features: Tensor, target: Tensor) -> Tensor:
        found = self._function(model, (features, target))
        if not isinstance(found, Tensor) or found.numel() != 1:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"loss {self.name!r}: expected a tensor of one number for a record, found {what}")
        # times NaN: where the loss is not finite its gradient is not either, and the record adds zero
        return found.reshape(()) * torch.where(found.detach().reshape(()).isfinite(), 1.0, math.nan)


CROSS_ENTROPY: Final = CrossEntropy()
LOSSES: Final[Mapping[str, Loss]] = {
    loss.name: loss
    for loss in (CROSS_ENTROPY, Binary(), MultiLabel(), MeanSquaredError(), Huber(), TokenCrossEntropy())
}


def loss_of(wanted: object) -> Loss:
    """Return the loss of that name, of the import path `module:function`, or of a function of (model, record).

    A path may also name an app, whose loss it then is. Raises: UnknownNameError, ExtensionError, ArgumentError.
    """
    if isinstance(wanted, str):
        if wanted in LOSSES:
            return LOSSES[wanted]
        if ":" not in wanted:
            raise UnknownNameError("loss", wanted, known=[*LOSSES, "module:function"])
        found = imported("loss", wanted, of_app="loss")
        if isinstance(found, str):
            return loss_of(found)
        if isinstance(found, type | nn.Module):
            why = f"found a {type(found).__name__}; the function takes (model, record) and gives a number"
            raise ExtensionError("loss", wanted, why)
        assert callable(found)  # `imported` says so
        return OwnLoss(found, wanted)
    if not callable(wanted) or isinstance(wanted, type | nn.Module):
        raise ArgumentError(f"loss: expected a name or a function of (model, record), found a {type(wanted).__name__}")
    return OwnLoss(wanted, getattr(wanted, "__name__", type(wanted).__name__))


def _require_shape(labels: Labels, expected: Shape, loss: str, field: str) -> None:
    if labels.shape[1:] != expected:
        found = ("n", *labels.shape[1:])
        raise TargetError(
            field, f"expected shape {_shown(('n', *expected))} for the loss {loss!r}, found {_shown(found)}"
        )


def _shown(shape: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _require_each(labels: Labels, is_right: NDArray[np.bool_], expected: str, field: str) -> None:
    rows = np.flatnonzero(~by_record(is_right).all(axis=1))
    if len(rows):
        raise TargetError(field, f"expected {expected} in row {rows[0]}, found another value")
