"""Whether a record's gradient is the same bits in every place of a pass and beside whatever others.

Kernels are chosen by shape, and round by their own order. At a kink of ReLU or max-pooling the last bit of a
pre-activation decides which way a record's gradient goes. One record more can then move the others' clipped gradients
by a part of R. In a pass of one shape nothing should depend on neighbours: tried here, bit by bit, with the very
kernels that will run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

from precad.clients.gradients.layers import LayerGradients
from precad.clients.gradients.probe import probe_labels
from precad.clients.models.raised import RAISED

_FILLINGS: Final = (math.nan, 1.0, math.inf, -math.inf, 3e38, -3e38, 1e3, 1e-40)
"""Values of neighbours, in odd and even places by turns. A scale of the whole batch, or a branch on it, answers to one
of these values. NaN alone does not do: `nan_to_num` hides it, and every comparison with it is false."""

Rows = Tensor | slice
"""Which records: a mask, places, or some in order."""
Take = Callable[[Tensor, Tensor], Sequence[LayerGradients]]
"""Features and labels of a tile to the gradients of its records."""


def is_bit_exact(take: Take, example: Tensor, label: Tensor, *, n_tile: int) -> bool:
    """Return whether made-up records have the same gradients and norms, to the last bit, in several arrangements of a
    tile.

    Beside other neighbours, in other places, with padding, beside records of every magnitude and such that are not
    finite, or after them, and once more. False too where such a pass cannot be made. A model that mixes records only
    beyond a threshold that none of these crosses is not found.

    example: of one record's features, without the batch axis.
    """
    features, labels = made_up_records(example, n_tile), probe_labels(label, n_tile)
    try:
        expected = _bits(take(features, labels))
        if n_tile == 1:  # nobody is beside it; others may have been before it
            _show(take, features, labels)
        return all(
            _are_same(_bits(take(others, labels[order])), is_kept, expected, order[is_kept])
            for others, order, is_kept in _arrangements(features)
        )
    except RAISED:
        return False


def _show(take: Take, features: Tensor, labels: Tensor) -> None:
    """Take passes of records of every magnitude: a model or a loss that keeps the largest is another then."""
    for filling in _FILLINGS if features.is_floating_point() else ():
        with suppress(*RAISED):
            take(torch.full_like(features, filling), labels)


def is_as_in_tile(take: Take, example: Tensor, label: Tensor, *, n_rows: int, n_tile: int) -> bool:
    """Return whether a pass of `n_rows` records is bit-exact, and gives each record the bits of a tile of `n_tile`.

    Then a record's gradient depends on neither who is beside it nor on how many are.
    """
    if not is_bit_exact(take, example, label, n_tile=n_rows):
        return False
    n_made = -(-n_rows // n_tile) * n_tile
    features, labels = made_up_records(example, n_made), probe_labels(label, n_made)
    found = _bits(take(features[:n_rows], labels[:n_rows]))
    for start in range(0, n_rows, n_tile):
        tile, n_shared = slice(start, start + n_tile), min(n_tile, n_rows - start)
        expected = _bits(take(features[tile], labels[tile]))
        if not _are_same(found, slice(start, start + n_shared), expected, slice(n_shared)):
            return False
    return True


def made_up_records(example: Tensor, n: int) -> Tensor:
    """Return noise of different brightness, or two tokens of every vocabulary, of the example's shape; (n, ..)."""
    generator = torch.Generator().manual_seed(2)
    shape = (n, *example.shape)
    if not example.is_floating_point():
        return torch.randint(0, 2, shape, generator=generator)
    brightness = torch.linspace(1.0, 0.05, n).view(n, *[1] * example.dim())
    return torch.rand(shape, generator=generator) * brightness


def _arrangements(features: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Return (the tile, which record is in each place, which places are compared)."""
    n = len(features)
    everywhere = torch.ones(n, dtype=torch.bool)
    orders = [torch.arange(n), torch.arange(n).flip(0), torch.randperm(n, generator=torch.Generator().manual_seed(3))]
    for order in orders:
        yield features[order], order, everywhere
    if n == 1:
        return
    few = torch.arange(n) < max(1, n // 4)
    is_odd = torch.arange(n) % 2 == 1
    fillings = _FILLINGS if features.is_floating_point() else (1, 1)
    places = [few, *(is_odd if i % 2 == 0 else ~is_odd for i in range(len(fillings)))]
    for is_kept, filling in zip(places, (0, *fillings), strict=True):
        others = features[orders[2]].clone()
        others[~is_kept] = filling
        yield others, orders[2], is_kept


def _bits(gradients: Sequence[LayerGradients]) -> list[Tensor]:
    """Return the bits of every record's squared norms by layer and of what its gradient is made of, (n, ..) int64."""
    squares = [layer.squared_norms() for layer in gradients]
    factors = [factor for layer in gradients for factor in layer.factors()]
    return [value.cpu().contiguous().view(torch.int64) for value in (*squares, *factors)]


def _are_same(found: list[Tensor], here: Rows, expected: list[Tensor], there: Rows) -> bool:
    """Tell whether some records' bits are the others'."""
    return all(torch.equal(ours[here], theirs[there]) for ours, theirs in zip(found, expected, strict=True))
