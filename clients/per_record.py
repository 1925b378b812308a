"""Per-record gradients, clipped and summed: Algorithm 2, lines 2 to 6 without the sign."""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clients.datasets import Records
from clients.errors import ArgumentError, NonFiniteGradientError, RecordMixingLayerError, UnknownNameError
from clients.models import parameter_count, unflatten

_DEFAULT_MEMORY_BYTES: Final = 256 * 2**20


def clipped_gradient_sum(
    parameters: NDArray[np.float32] | NDArray[np.float64],
    records: Records,
    *,
    model: nn.Module,
    record_clip_norm: float,
    device: str = "auto",
    memory_bytes: int = _DEFAULT_MEMORY_BYTES,
) -> NDArray[np.float64]:
    """sum_s g_s * min(1, R / ||g_s||_2) over `records`, g_s the cross-entropy gradient of record s; shape (d,).

    R is `record_clip_norm`; the norm is over all d parameters together. No records: the zero vector.
    Adding or removing one record moves the sum by at most R, in real arithmetic. Norms, factors and the sum are in
    float64; g_s has the precision of `parameters`, float32 in production, where a kernel may round the gradients of the
    other records differently once the size of the batch has changed.
    Memory: records are taken in chunks whose gradients fit in `memory_bytes`; activations come on top.
    Raises: ArgumentError, UnknownNameError, DimensionError, RecordMixingLayerError, NonFiniteGradientError.
    Source: PRECAD, Algorithm 2, lines 2-6.
    """
    if not 0 < record_clip_norm < math.inf:
        raise ArgumentError(f"record_clip_norm must be positive and finite, got {record_clip_norm}")
    refuse_record_mixing(model)
    theta = torch.tensor(parameters, device=resolve_device(device))
    weights = unflatten(theta, model)
    features = torch.from_numpy(records.features).to(theta)
    labels = torch.from_numpy(records.labels).to(theta.device)
    total = torch.zeros_like(theta, dtype=torch.float64)
    n_chunk = _records_per_chunk(parameter_count(model), theta.element_size(), memory_bytes)
    for start in range(0, len(records), n_chunk):
        chunk = slice(start, start + n_chunk)
        gradients = per_record_gradients(weights, features[chunk], labels[chunk], model=model)
        total += clip_factors(gradients, record_clip_norm) @ gradients.double()
    return np.asarray(total.cpu().numpy(), dtype=np.float64)


def per_record_gradients(weights: dict[str, Tensor], features: Tensor, labels: Tensor, *, model: nn.Module) -> Tensor:
    """g_s = gradient of the cross-entropy loss of record s for each record: (n, d) in the dtype of `weights`.

    `weights` are the model's parameters by name, in the order of the flat vector, as `unflatten` gives them; features
    (n, 1, side, side) and labels (n,) are on the same device.
    """

    def loss(at: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, at, (image.unsqueeze(0),))
        return nn.functional.cross_entropy(logits, label.unsqueeze(0))

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))
    per_parameter: dict[str, Tensor] = per_record(weights, features, labels)
    in_order = (per_parameter[name] for name in weights)
    return torch.cat([gradient.flatten(start_dim=1) for gradient in in_order], dim=1)


def clip_factors(gradients: Tensor, bound: float) -> Tensor:
    """min(1, bound / ||g_s||_2) for each row g_s of `gradients` (n, d), and 1 for a row of zeros; float64 (n,).

    Norms are accumulated in float64, with a relative error below d * 2^-53.
    Raises: NonFiniteGradientError, because a NaN would pass every comparison with the bound.
    """
    norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    n_bad = int((~norms.isfinite()).sum())
    if n_bad:
        raise NonFiniteGradientError(n_bad=n_bad, n_records=len(norms))
    factors: Tensor = bound / norms.clamp(min=bound)
    return factors


def refuse_record_mixing(model: nn.Module) -> None:
    """Raise RecordMixingLayerError, naming the layer, if `model` normalises over the batch or keeps running averages.

    With such a layer, one record changes the gradients of all others, and clipping bounds nobody's influence.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise RecordMixingLayerError(name or "model", type(layer).__name__)


def resolve_device(name: str) -> torch.device:
    """The device that configuration names: "cpu", "cuda", or "auto", which is cuda where there is one.

    Raises: UnknownNameError; ArgumentError if "cuda" is asked for and absent.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise UnknownNameError("device", name, known=["auto", "cpu", "cuda"])
    if name == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device 'cuda' was asked for, and PyTorch sees no CUDA device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _records_per_chunk(d: int, element_bytes: int, memory_bytes: int) -> int:
    """How many records' gradients fit in memory_bytes: by layer, flat, and in float64, d entries each; at least one."""
    return max(1, memory_bytes // (d * (2 * element_bytes + 8)))
