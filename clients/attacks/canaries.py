"""Hold canaries for an audit: records whose gradients are directions that the auditor knows.

A canary is an ordinary record to the sampler, the model, automatic differentiation, the clip and the sum. It is in an
ordinary update to the projection, the encoding, the check, the noise and the opening. `CanaryHead` gives a model one
more parameter for each of m canaries. The gradient of canary j is 10 R in the direction of the j-th of them, and 0
elsewhere: a clip that fails shows. Every other record's gradient is 0 there, so a canary disturbs nobody's training.

An audit client is a member of the task that everybody sees. Which of its canaries are among its records is decided by
fair coins that the auditor keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.attacks.attack import Attack, Vector
from precad.clients.checks import require_positive
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records
from precad.clients.training.conduct import Conduct
from precad.mpc import fixed_point
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

EXCESS: Final = 10.0
"""Norm of a canary's raw gradient over the clip R."""
_LABEL: Final = 1
"""Class of every canary: any that is not the logit that the head writes to, 0."""


class CanaryHead(nn.Module):
    """A model with a parameter for each of m canaries, the last m of its vector.

    A record is canary j where all of its features are -(j + 1). All of its logits are then 0, whatever the parameters
    are: so the gradient of its cross-entropy is the same in every round. The model itself reads zeros in its place.
    """

    def __init__(self, model: nn.Module, n_canaries: int, record_clip: float) -> None:
        """model: gives logits (n, classes). Raises ArgumentError."""
        super().__init__()
        if n_canaries < 1:
            raise ArgumentError(f"n_canaries must be >= 1, got {n_canaries}")
        require_positive("record_clip", record_clip)
        self.model = model
        self.canaries = nn.Linear(n_canaries, 1, bias=False)
        nn.init.zeros_(self.canaries.weight)
        self._raw_norm = EXCESS * record_clip

    def forward(self, features: Tensor) -> Tensor:
        """Return the model's logits, and zeros for canaries; (n, classes)."""
        flat = features.flatten(start_dim=1)
        first = flat[:, :1]
        is_canary = (flat == first).all(dim=1, keepdim=True) & (first <= -1)
        places = torch.arange(self.canaries.in_features, device=flat.device, dtype=flat.dtype)
        of_record = is_canary.view(-1, *[1] * (features.dim() - 1))
        logits = self.model(features.masked_fill(of_record, 0.0)).masked_fill(is_canary, 0.0)
        chosen = ((-1 - first == places) & is_canary).to(flat.dtype) * (self._raw_norm * logits.shape[1])
        written = self.canaries(chosen)
        nothing = written - written.detach()  # 0, with the gradient of what was written
        return torch.cat([logits[:, :1] + nothing, logits[:, 1:]], dim=1)


def canary_records(places: NDArray[np.int64], shape: tuple[int, ...]) -> Records:
    """Return the records of these canaries, for features of that shape."""
    features = np.broadcast_to(-1.0 - places.reshape(-1, *[1] * len(shape)), (len(places), *shape))
    return Records(np.array(features, dtype=np.float32), np.full(len(places), _LABEL, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Canaries(Attack):
    """Train on canaries alone, and keep what was uploaded at their places. All else is the protocol's."""

    name: ClassVar[str] = "canaries"

    places: NDArray[np.int64]
    """(k,): which of the m canaries are this client's."""
    coins: NDArray[np.bool_] = field(repr=False)
    """(k,): which of them are among its records."""
    head: slice
    """Where the m parameters are in the task's vector."""
    uploads: list[Vector] = field(default_factory=list, repr=False)
    """(k,) for every encoded update: its coordinates, in the aggregate's unit."""

    def __post_init__(self) -> None:
        if self.places.shape != self.coins.shape or self.places.ndim != 1:
            raise ArgumentError(f"coins must have the shape of places, {self.places.shape}, got {self.coins.shape}")

    def on_records(self, records: Records) -> Records:
        """Return the canaries whose coin says so. Raises ArgumentError for texts."""
        if records.is_text:
            raise ArgumentError(f"canaries need features that are numbers, got records of shape {records.shape}")
        return canary_records(self.places[self.coins], records.shape)

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Encode as an honest client, and keep what the canaries added."""
        encoded = Conduct.encode(self, update, task)
        self.uploads.append(fixed_point.decode(encoded[self.head][self.places], task.frac_bits))
        return encoded


def most_canaries(record_clip: float, client_clip: float) -> int:
    """Return how many canaries of norm R a client may hold, so that the projection onto C never shrinks them."""
    return math.floor((client_clip / record_clip) ** 2)
