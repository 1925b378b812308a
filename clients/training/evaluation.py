"""How good a global model is on records nobody trains on: its accuracy, and its confidence in every class."""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn
from torch.func import functional_call

from precad.clients.errors import ArgumentError, ModelRecordError
from precad.clients.gradients.engine import deterministic
from precad.clients.gradients.probe import EXHAUSTED
from precad.clients.models import metrics, networks
from precad.clients.models.losses import Labels, Loss
from precad.clients.models.metrics import Metric
from precad.clients.models.output_range import Scale, scale_of
from precad.clients.models.outputs import array_of, outputs_of
from precad.clients.own_code import Unspoken
from precad.clients.records import IMAGE_AXES, Records, channels_last, example_of, model_inputs
from precad.protos.task.model_update import has_diverged

CPU: Final = torch.device("cpu")
_BATCH, _BATCH_OF_ACCELERATOR = 256, 4096

Model = str | nn.Module
"""A model's name; or one with any parameters, which evaluation replaces."""


def accuracy(parameters: NDArray[np.float32], model: Model, records: Records, *, device: torch.device = CPU) -> float:
    """Return the share of `records` whose label has the largest logit under the model with `parameters` (d,).

    Other labels than classes: `precad.clients.models.metrics.accuracy`. device: where it is computed.

    Raises: ArgumentError without records, UnknownNameError, DimensionError; ModelRecordError where the model raises.
    """
    found = outputs(parameters, model, records, device)
    return metrics.accuracy(found, records.labels, _scale(found, model, records).threshold)


def _scale(found: NDArray[np.floating[Any]], model: Model, records: Records) -> Scale:
    """Tell whether the model gives probabilities. It is asked only where all that it gave could be some."""
    if not ((found >= 0) & (found <= 1)).all():
        return Scale.LOGITS
    return scale_of(_own_copy(model), example_of(records))


def measured(
    parameters: NDArray[np.float32],
    model: Model,
    records: Records,
    wanted: Mapping[str, Metric],
    *,
    device: torch.device = CPU,
) -> dict[str, float]:
    """Return metrics of the model with `parameters` (d,), by name.

    Raises: as `accuracy`; ArgumentError for a metric that raises, without its text, which may hold values of a record.
    """
    if not wanted:
        return {}
    found = outputs(parameters, model, records, device)
    asked, by_name = dict(wanted), metrics.METRICS["accuracy"]
    for name in [name for name, metric in wanted.items() if metric is by_name]:
        asked[name] = functools.partial(metrics.accuracy, threshold=_scale(found, model, records).threshold)
    return {name: _value(name, metric, found, records.labels) for name, metric in asked.items()}


def finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Return those that a file of JSON can hold: a precision of nothing, 0/0, is no figure."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _value(name: str, metric: Callable[[Any, Any], object], found: NDArray[np.float32], labels: Labels) -> float:
    def spoken(error: Exception) -> ArgumentError:
        return ArgumentError(f"metric {name!r}: expected a number, found {type(error).__name__} raised")

    with Unspoken(spoken, EXHAUSTED):
        value: object = metric(found.copy(), labels.copy())  # which it may change
        if isinstance(value, (str, bytes)):  # of which `float` reads some
            raise ArgumentError(f"metric {name!r}: expected a number, found a {type(value).__name__}")
        return float(value)  # type: ignore[arg-type]  # whatever is no number is refused


def confidences(parameters: NDArray[np.float32], model: Model, records: Records) -> NDArray[np.float64]:
    """Return the softmax of the logits: one model's confidence in every class. Shape (n, n_logits), rows sum to 1.

    A single logit is that of class 1, and gives two columns. So does a single probability. What a model gives as
    shares that sum to one is taken as it is. Raises: as `accuracy`.
    """
    logits = outputs(parameters, model, records, CPU).astype(np.float64).reshape(len(records), -1)
    scale = _scale(logits, model, records)
    if scale is Scale.DISTRIBUTION:
        return logits
    if scale is Scale.PROBABILITIES and logits.shape[1] == 1:
        return np.hstack([1 - logits, logits])
    if logits.shape[1] == 1:
        logits = np.pad(logits, ((0, 0), (1, 0)))
    found: NDArray[np.float64] = softmax(logits, axis=1)
    return found


def attack_success(
    parameters: NDArray[np.float32], model: Model, wanted: Records | None, *, device: torch.device = CPU
) -> float | None:
    """Return the share of the records that the model labels as the attackers want, whose labels `wanted` has.

    None where they aim at nothing, or no test record shows it. Raises: as `accuracy`.
    """
    return None if wanted is None or len(wanted) == 0 else accuracy(parameters, model, wanted, device=device)


def is_finite(parameters: NDArray[np.float32], model: Model, records: Records, loss: Loss | None = None) -> bool:
    """Return whether training has left this model within the finite numbers, outputs for some records included.

    loss: its value must be finite for one of these records, too: where it is for none, clients learn nothing.
    Raises: as `accuracy`.
    """
    if has_diverged(parameters):
        return False
    some = records.take(np.arange(min(len(records), _BATCH)))
    if not np.isfinite(outputs(parameters, model, some, CPU)).all():
        return False
    return loss is None or _is_loss_finite(parameters, model, some, loss)


def _is_loss_finite(parameters: NDArray[np.float32], model: Model, some: Records, loss: Loss) -> bool:
    """Tell whether the loss of one of these records is finite. A loss that raises passes: clients say so."""
    built = networks.trained(_own_copy(model), parameters).eval()
    for i in range(len(some)):
        one = some.take(np.array([i]))
        features, label = model_inputs(torch.tensor(one.features), torch.float32), torch.tensor(one.labels)
        try:
            with Unspoken(ModelRecordError, EXHAUSTED), torch.no_grad():
                found = loss.each(built, features, label)
        except ModelRecordError:
            return True
        if bool(found.isfinite().all()):
            return True
    return len(some) == 0


def outputs(
    parameters: NDArray[np.float32], model: Model, records: Records, device: torch.device
) -> NDArray[np.float32]:
    """Return the outputs of the model with `parameters` (d,) for every record, (n, ..).

    Raises: as `accuracy`.
    """
    if len(records) == 0:
        raise ArgumentError("records: expected at least one record, found none")
    built = _own_copy(model).eval().to(device)
    weights = networks.unflatten(torch.tensor(parameters, dtype=torch.float32, device=device), built)
    parts, size = [], _BATCH if device.type == "cpu" else _BATCH_OF_ACCELERATOR
    with Unspoken(ModelRecordError, EXHAUSTED), torch.inference_mode(), deterministic():
        for start in range(0, len(records), size):
            features = model_inputs(torch.tensor(records.features[start : start + size]).to(device), torch.float32)
            if features.dim() == IMAGE_AXES and device.type == "cpu":  # pooling is several times faster
                features = channels_last(features)
            parts.append(array_of(outputs_of(functional_call(built, weights, (features,)))))
    return np.concatenate(parts)


def _own_copy(model: Model) -> nn.Module:
    """Return a model to set to evaluation and to move: the caller's own stays as it is."""
    return networks.build(model) if isinstance(model, str) else copy.deepcopy(model)
