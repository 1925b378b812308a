"""How good a global model is on records nobody trains on: its accuracy, and its confidence in every class."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch.func import functional_call

from clients import models
from clients.datasets import Records, channels_last, model_inputs
from clients.errors import ArgumentError

_BATCH: Final = 256
_IMAGE_AXES: Final = 4


def accuracy(parameters: NDArray[np.float32], model_name: str, records: Records) -> float:
    """Share of `records`, in [0, 1], whose label has the largest logit under the model with `parameters` (d,).

    Raises: ArgumentError without records, UnknownNameError, DimensionError.
    """
    predicted = _logits(parameters, model_name, records).argmax(axis=1)
    return float(np.mean(predicted == records.labels))


def confidences(parameters: NDArray[np.float32], model_name: str, records: Records) -> NDArray[np.float64]:
    """Softmax of the logits: one model's confidence in every class. Shape (n, n_logits), rows sum to 1.

    Raises: as `accuracy`.
    """
    found: NDArray[np.float64] = softmax(_logits(parameters, model_name, records).astype(np.float64), axis=1)
    return found


def attack_success(parameters: NDArray[np.float32], model_name: str, wanted: Records | None) -> float | None:
    """Share of the records that the model labels as the attackers want, whose labels `wanted` has.

    None where they aim at nothing, or no test record shows it. Raises: as `accuracy`.
    """
    if wanted is None or len(wanted) == 0:
        return None
    return accuracy(parameters, model_name, wanted)


def _logits(parameters: NDArray[np.float32], model_name: str, records: Records) -> NDArray[np.float32]:
    """Shape (n, n_logits)."""
    if len(records) == 0:
        raise ArgumentError("accuracy needs at least one record, got none")
    model = models.build(model_name).eval()
    weights = models.unflatten(torch.tensor(parameters, dtype=torch.float32), model)
    parts = []
    with torch.inference_mode():
        for start in range(0, len(records), _BATCH):
            features = model_inputs(torch.tensor(records.features[start : start + _BATCH]), torch.float32)
            if features.dim() == _IMAGE_AXES:  # pooling is several times faster
                features = channels_last(features)
            parts.append(functional_call(model, weights, (features,)).numpy())
    return np.concatenate(parts)
