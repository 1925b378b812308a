"""How good a global model is on records nobody trains on: its accuracy, and its confidence in every class."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch.func import functional_call

from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import deterministic
from precad.clients.models import networks
from precad.clients.records import Records, channels_last, model_inputs
from precad.protos.task.model_update import has_diverged

CPU: Final = torch.device("cpu")
_BATCH, _BATCH_OF_ACCELERATOR = 256, 4096
_IMAGE_AXES: Final = 4


def accuracy(
    parameters: NDArray[np.float32], model_name: str, records: Records, *, device: torch.device = CPU
) -> float:
    """Share of `records`, in [0, 1], whose label has the largest logit under the model with `parameters` (d,).

    device: where it is computed.

    Raises: ArgumentError without records, UnknownNameError, DimensionError.
    """
    predicted = _logits(parameters, model_name, records, device).argmax(axis=1)
    return float(np.mean(predicted == records.labels))


def confidences(parameters: NDArray[np.float32], model_name: str, records: Records) -> NDArray[np.float64]:
    """Softmax of the logits: one model's confidence in every class. Shape (n, n_logits), rows sum to 1.

    Raises: as `accuracy`.
    """
    found: NDArray[np.float64] = softmax(_logits(parameters, model_name, records, CPU).astype(np.float64), axis=1)
    return found


def attack_success(
    parameters: NDArray[np.float32], model_name: str, wanted: Records | None, *, device: torch.device = CPU
) -> float | None:
    """Share of the records that the model labels as the attackers want, whose labels `wanted` has.

    None where they aim at nothing, or no test record shows it. Raises: as `accuracy`.
    """
    if wanted is None or len(wanted) == 0:
        return None
    return accuracy(parameters, model_name, wanted, device=device)


def is_finite(parameters: NDArray[np.float32], model_name: str, records: Records) -> bool:
    """Return whether training has left this model within the finite numbers, logits of some records included.

    Raises: as `accuracy`.
    """
    if has_diverged(parameters):
        return False
    some = records.take(np.arange(min(len(records), _BATCH)))
    return bool(np.isfinite(_logits(parameters, model_name, some, CPU)).all())


def _logits(
    parameters: NDArray[np.float32], model_name: str, records: Records, device: torch.device
) -> NDArray[np.float32]:
    """Shape (n, n_logits)."""
    if len(records) == 0:
        raise ArgumentError("accuracy needs at least one record, got none")
    model = networks.build(model_name).eval().to(device)
    weights = networks.unflatten(torch.tensor(parameters, dtype=torch.float32, device=device), model)
    parts, size = [], _BATCH if device.type == "cpu" else _BATCH_OF_ACCELERATOR
    with torch.inference_mode(), deterministic():
        for start in range(0, len(records), size):
            features = model_inputs(torch.tensor(records.features[start : start + size]).to(device), torch.float32)
            if features.dim() == _IMAGE_AXES and device.type == "cpu":  # pooling is several times faster
                features = channels_last(features)
            parts.append(functional_call(model, weights, (features,)).cpu().numpy())
    return np.concatenate(parts)
