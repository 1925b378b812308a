"""Make records whose gradients are directions that the auditor knows, and the head that a model has for them.

A canary is an ordinary record to the sampler, the model, automatic differentiation, the clip and the sum. It is in an
ordinary update to the projection, the encoding, the check, the noise and the opening. `CanaryHead` gives a model one
more parameter for each of m canaries. The gradient of canary j is 1.25, 2 or 10 R, by turns, in the direction of the
j-th of them, and 0 elsewhere. So a clip that fails shows, and one that begins too late. Every other record's gradient
is 0 there, so a canary disturbs nobody's training.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.checks import require_positive
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records
from precad.protos.task.task import Task

EXCESSES: Final = (1.25, 2.0, 10.0)
"""Norms of canaries' raw gradients over the clip R, by turns."""
_LABEL: Final = 1
"""Class of every canary: any that is not the logit that the head writes to, 0."""
_FIRST: Final = 2**20
"""All features of canary j are -(_FIRST + j): numbers that float32 holds exactly, and that records do not have."""


class CanaryHead(nn.Module):
    """A model with a parameter for each of m canaries, the last m of its vector.

    A record is canary j where all of its features are -(2^20 + j). All of its logits are then 0, whatever the
    parameters are. So the gradient of its cross-entropy is the same in every round. The model itself reads zeros in its
    place.
    """

    def __init__(self, model: nn.Module, n_canaries: int, record_clip: float) -> None:
        """model: gives logits (n, classes). Raises ArgumentError."""
        super().__init__()
        if n_canaries < 1:
            raise ArgumentError(f"n_canaries: expected at least 1, found {n_canaries}")
        require_positive("record_clip", record_clip)
        self.model = model
        self.canaries = nn.Linear(n_canaries, 1, bias=False)
        nn.init.zeros_(self.canaries.weight)
        self._raw_norms = [EXCESSES[place % len(EXCESSES)] * record_clip for place in range(n_canaries)]

    def forward(self, features: Tensor) -> Tensor:
        """Return the model's logits, and zeros for canaries; (n, classes)."""
        flat = features.flatten(start_dim=1)
        first = flat[:, :1]
        is_canary = (flat == first).all(dim=1, keepdim=True) & (first <= -_FIRST)
        places = torch.arange(self.canaries.in_features, device=flat.device, dtype=flat.dtype)
        of_record = is_canary.view(-1, *[1] * (features.dim() - 1))
        logits = self.model(features.masked_fill(of_record, 0.0)).masked_fill(is_canary, 0.0)
        raw_norms = torch.tensor(self._raw_norms, device=flat.device, dtype=flat.dtype)
        chosen = ((-_FIRST - first == places) & is_canary).to(flat.dtype) * (raw_norms * logits.shape[1])
        written = self.canaries(chosen)
        nothing = written - written.detach()  # 0, with the gradient of what was written
        return torch.cat([logits[:, :1] + nothing, logits[:, 1:]], dim=1)


def canary_records(places: NDArray[np.int64], like: Records) -> Records:
    """Return the records of these canaries, of the shape of others. Raises ArgumentError for texts."""
    if like.is_text:
        raise ArgumentError(f"features: expected numbers for canaries, found records of shape {like.shape}")
    features = np.broadcast_to(-float(_FIRST) - places.reshape(-1, *[1] * len(like.shape)), (len(places), *like.shape))
    return Records(np.array(features, dtype=np.float32), np.full(len(places), _LABEL, dtype=np.int64))


def with_head(model: nn.Module, task: Task) -> nn.Module:
    """Return an audited task's model with its head, for a process that hosts an audit client."""
    return CanaryHead(model, task.n_canaries, task.record_clip)
