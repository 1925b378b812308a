"""One client's clipped sum in one call: an engine is made for it, as for a client that is alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models.losses import CROSS_ENTROPY, Loss
from precad.clients.records.records import Records, example_label_of, example_of


def clipped_gradient_sum(
    parameters: NDArray[np.float32] | NDArray[np.float64],
    records: Records,
    *,
    model: nn.Module,
    record_clip_norm: float,
    loss: Loss = CROSS_ENTROPY,
    device: str = "auto",
    memory_bytes: int | None = None,
) -> NDArray[np.float64]:
    """Return the sum, (d,), in the precision of `parameters`."""
    clip, dtype = RecordClip(record_clip_norm), torch.tensor(parameters[:0]).dtype
    example, label = example_of(records), example_label_of(records)
    engine = RecordEngine(model, example, loss=loss, label=label, device=device, dtype=dtype, memory_bytes=memory_bytes)
    return engine.clipped_sums(parameters, [records], clip)[0]
