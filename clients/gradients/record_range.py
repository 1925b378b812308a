"""Before the first round: whether every record's label and tokens are ones that the model has a place for.

What is outside would end a client in the middle of a round, by an index that PyTorch does not find. The message names
the row, and the range that the model has; it says nothing of the record.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from precad.clients.errors import RecordRangeError
from precad.clients.models.losses import CROSS_ENTROPY, Loss, Shape
from precad.clients.models.outputs import outputs_of
from precad.clients.models.raised import RAISED
from precad.clients.records.records import Records, by_record, example_of


def require_range(model: nn.Module, records: Mapping[str, Records], loss: Loss = CROSS_ENTROPY) -> None:
    """Refuse labels that `model` has no logit for, or the loss no meaning, and tokens that the model cannot read.

    records: at least one set, all of one shape, by the field that they are from.
    Raises: RecordRangeError, TargetError.
    """
    with torch.no_grad():
        outputs = outputs_of(model(example_of(next(iter(records.values()))).unsqueeze(0))).shape[1:]
    for field, own in records.items():
        loss.require_targets(own.labels, tuple(outputs), field)
    texts = {field: own for field, own in records.items() if own.is_text and own.features.size}
    if not texts:
        return
    least = min(int(own.features.min()) for own in texts.values())
    most = max(int(own.features.max()) for own in texts.values())
    shape = next(iter(texts.values())).shape
    if least >= 0 and _reads(model, most, shape):
        return
    n_tokens = _vocabulary(model, max(most, 0), shape)
    for field, own in texts.items():
        outside = np.flatnonzero(by_record((own.features < 0) | (own.features >= n_tokens)).any(axis=1))
        if len(outside):
            raise RecordRangeError(field, int(outside[0]), "tokens", n_tokens)


def _vocabulary(model: nn.Module, most: int, shape: Shape) -> int:
    """Return how many tokens from 0 on the model reads, at most `most` + 1. Token 0 it reads."""
    if _reads(model, most, shape):
        return most + 1
    low, high = 0, most  # reads `low`, does not read `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _reads(model, middle, shape) else (low, middle)
    return high


def _reads(model: nn.Module, token: int, shape: Shape) -> bool:
    """Return whether the model takes a text that is this token throughout."""
    try:
        with torch.no_grad():
            model(torch.full((1, *shape), token, dtype=torch.int64))
    except RAISED:
        return False
    return True
