"""How good a model is on records that nobody trains on: by name, or by a function of the user's own.

    accuracy  share of right classes; of the places that have one (tokens), of all labels (several for a record);
              one output says class 1 where it is positive, or above 1/2 if the model gives probabilities
    mse, mae  mean squared and mean absolute difference of outputs and targets

A function takes (outputs, labels), two arrays with a row for each record, and gives a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, UnknownNameError
from precad.clients.models.extension import imported
from precad.clients.models.losses import LOSSES, Labels, Loss

Outputs = NDArray[np.float32]
Metric = Callable[[Any, Any], float]


def accuracy(outputs: Outputs, labels: Labels, threshold: float = 0.0) -> float:
    """Share of `labels` that the outputs say, in [0, 1].

    The class of the largest logit, where there are several for a record or a place. One logit alone says class 1 where
    it is above the threshold. So does each of several logits of a record with a label each, float32.

    threshold: 0 for logits; one half for probabilities (`precad.clients.models.output_range`)
    """
    if labels.dtype != np.int64:
        return float(np.mean((outputs.reshape(labels.shape) > threshold) == (labels > 0.5)))
    if outputs.ndim == labels.ndim + 1 and outputs.shape[-1] > 1:
        is_meant = labels >= 0
        return float(np.mean((outputs.argmax(axis=-1) == labels)[is_meant]))
    return float(np.mean((outputs.reshape(labels.shape) > threshold) == (labels == 1)))


def has_accuracy(loss: Loss, labels: Labels) -> bool:
    """Tell whether labels are classes, so that a share of them can be right."""
    return labels.dtype == np.int64 or loss is LOSSES["multi-label"]


def _mse(outputs: Outputs, labels: Labels) -> float:
    return float(np.mean(np.square(outputs.astype(np.float64).reshape(labels.shape) - labels)))


def _mae(outputs: Outputs, labels: Labels) -> float:
    return float(np.mean(np.abs(outputs.astype(np.float64).reshape(labels.shape) - labels)))


METRICS: Final[Mapping[str, Metric]] = {"accuracy": accuracy, "mse": _mse, "mae": _mae}


def metrics_of(wanted: Iterable[object]) -> dict[str, Metric]:
    """Return metrics by the name that results have: names, `module:function`, or functions of (outputs, labels).

    A path may also name an app, whose metrics are then taken.

    Raises: UnknownNameError, ExtensionError, ArgumentError.
    """
    if isinstance(wanted, str | Mapping) or not isinstance(wanted, Iterable):
        raise ArgumentError(f"metrics: expected a list of names or functions, found {wanted!r:.60}")
    found: dict[str, Metric] = {}
    for one in wanted:
        if isinstance(one, str) and ":" in one:
            own = imported("metric", one, of_app="metrics")
            found |= {one.partition(":")[2]: own} if callable(own) else metrics_of(cast("Iterable[object]", own))
        elif isinstance(one, str):
            if one not in METRICS:
                raise UnknownNameError("metric", one, known=[*METRICS, "module:function"])
            found[one] = METRICS[one]
        elif callable(one):
            found[getattr(one, "__name__", type(one).__name__)] = one
        else:
            raise ArgumentError(f"metrics: expected names or functions of (outputs, labels), found {one!r:.60}")
    return found
