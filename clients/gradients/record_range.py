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
from precad.clients.gradients.probe import REFUSALS
from precad.clients.records.records import Records, example_of, require_labels


def require_range(model: nn.Module, records: Mapping[str, Records]) -> None:
    """Refuse labels that `model` has no logit for, and tokens that it cannot read.

    records: at least one set, all of one shape, by the field that they are from.
    Raises: RecordRangeError.
    """
    with torch.no_grad():
        n_logits = model(example_of(next(iter(records.values()))).unsqueeze(0)).shape[-1]
    for field, own in records.items():
        require_labels(own.labels, n_logits, field)
    texts = {field: own for field, own in records.items() if own.is_text and own.features.size}
    if not texts:
        return
    least = min(int(own.features.min()) for own in texts.values())
    most = max(int(own.features.max()) for own in texts.values())
    length = next(iter(texts.values())).shape[0]
    if least >= 0 and _reads(model, most, length):
        return
    n_tokens = _vocabulary(model, max(most, 0), length)
    for field, own in texts.items():
        outside = np.flatnonzero(np.any((own.features < 0) | (own.features >= n_tokens), axis=1))
        if len(outside):
            raise RecordRangeError(field, int(outside[0]), "tokens", n_tokens)


def _vocabulary(model: nn.Module, most: int, length: int) -> int:
    """Return how many tokens from 0 on the model reads, at most `most` + 1. Token 0 it reads."""
    if _reads(model, most, length):
        return most + 1
    low, high = 0, most  # reads `low`, does not read `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _reads(model, middle, length) else (low, middle)
    return high


def _reads(model: nn.Module, token: int, length: int) -> bool:
    """Return whether the model takes a text that is this token throughout."""
    try:
        with torch.no_grad():
            model(torch.full((1, length), token, dtype=torch.int64))
    except REFUSALS:
        return False
    return True
