"""Sums over the records of each client within a batch: matrix products by segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

Segments = Sequence[slice]
"""For each client, its records within the batch, one at least, in order; together the whole batch. Copies that fill up
a stack of models (`precad.clients.gradients.model_stack`) are in no segment and count for nothing."""


LOOPING_DEVICES: Final = ("cpu",)
"""Where a product for each client is the faster way: a call costs little beside it."""
_GROUPED_ROWS: Final = 16
"""Segments of at most so many records are added up record by record, all of them together; longer ones one by one."""


def segment_products(left: Tensor, right: Tensor, segments: Segments) -> Tensor:
    """Return sum over the records s of each segment of left_s right_s^T; (n, o), (n, k) -> (len(segments), o, k).

    The bits of a segment's sum depend on its own records and their number only. Neither the other segments nor where
    the segment lies changes the bits. A client's update must not tell which others its process hosts.
    """
    if all(part.stop - part.start == 1 for part in segments):
        alone = torch.tensor([part.start for part in segments], dtype=torch.int64, device=left.device)
        return left[alone][:, :, None] * right[alone][:, None, :]
    if len(segments) == 1:
        return _product(left, right, segments[0])[None]
    if left.device.type in LOOPING_DEVICES:
        return torch.stack([_product(left, right, part) for part in segments])
    return grouped_products(left, right, segments)


def _product(left: Tensor, right: Tensor, part: slice) -> Tensor:
    """Return one segment's product, of operands copied to where tensors begin.

    How a product rounds may depend on how its operands lie.
    """
    if part.stop - part.start == 1:
        return left[part.start][:, None] * right[part.start][None, :]
    of_left, of_right = (value[part].clone() if part.start else value[part] for value in (left, right))
    return (of_left[:, 0] @ of_right)[None] if left.shape[1] == 1 else of_left.T @ of_right


def grouped_products(left: Tensor, right: Tensor, segments: Segments) -> Tensor:
    """Return what `segment_products` does, with few calls, since calls are what an accelerator waits for.

    Short segments are added up together, one record of each at a time, element by element; a product for each long one.
    Which of the two depends on the segment's own length.
    """
    lengths = torch.tensor([part.stop - part.start for part in segments])
    sums = left.new_zeros(len(segments), left.shape[1], right.shape[1])
    starts = torch.tensor([part.start for part in segments])
    is_short = lengths <= _GROUPED_ROWS
    for i in range(int(lengths[is_short].max()) if is_short.any() else 0):
        rows = torch.nonzero(is_short & (lengths > i))[:, 0]
        at, to = (starts[rows] + i).to(left.device), rows.to(left.device)
        sums[to] += left[at][:, :, None] * right[at][:, None, :]
    for row in torch.nonzero(~is_short)[:, 0].tolist():
        sums[row] = _product(left, right, segments[row])
    return sums
