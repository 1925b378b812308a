"""Whether a record's gradient is the same bits in every place of a pass and beside whatever others.

Kernels are chosen by shape, and round by their own order. At a kink of ReLU or max-pooling the last bit of a
pre-activation decides which way a record's gradient goes. One record more can then move the others' clipped gradients
by a part of R. In a pass of one shape nothing should depend on neighbours: tried here, bit by bit, with the very
kernels that will run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from precad.clients.gradients.layers import LayerGradients
from precad.clients.gradients.probe import probe_labels
from precad.clients.models.raised import RAISED

_FILLINGS: Final = (math.nan, 1.0, math.inf, -math.inf, 3e38, -3e38, 1e3, 1e-40)
"""Values of neighbours, in odd and even places by turns. A scale of the whole batch, or a branch on it, answers to one
of these values. NaN alone does not do: `nan_to_num` hides it, and every comparison with it is false."""
_ENOUGH: Final = 512
"""Records that are tried, however few a pass takes. Kernels of small layers may round one in thirty by its place."""
_ENOUGH_NUMBERS: Final = 2**21
"""Numbers that these records give together. Fewer records do where a model is large: each is rounded so often."""

Rows = Tensor | slice
"""Which records: a mask, places, or some in order."""
Take = Callable[[Tensor, Tensor], Sequence[LayerGradients]]
"""Features and labels of a tile to the gradients of its records."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Say what the records are like that a model is tried with."""

    example: Tensor
    """The features of one, without the batch axis; the values do not matter."""
    label: Tensor
    n_tokens: int = 2
    """Tokens that the model reads, where features are a text."""
    n_numbers: int = 0
    """Numbers that it makes of a record on the way, beside those of the gradient."""

    def features(self, n: int, seed: int) -> Tensor:
        """Return made-up ones, (n, ..)."""
        return made_up_records(self.example, n, seed=seed, n_tokens=self.n_tokens)

    def labels(self, n: int) -> Tensor:
        """Return some for them, (n, ..)."""
        return probe_labels(self.label, n)


def is_bit_exact(take: Take, kind: Kind, *, n_tile: int) -> bool:
    """Return whether made-up records have the same gradients and norms, to the last bit, in several arrangements of a
    tile.

    Beside other neighbours, in other places, with padding, beside records of every magnitude and such that are not
    finite, or after them, and once more. False too where such a pass cannot be made. A model that mixes records only
    beyond a threshold that none of these crosses is not found.
    """
    generator = torch.Generator().manual_seed(4)
    try:
        is_so = _is_so_arranged(take, kind, n_tile)
        if not is_so or n_tile == 1:
            return is_so
        for features, labels, bits in _passes(take, kind, n_tile, n_tile):
            order = torch.randperm(n_tile, generator=generator)
            if not _are_same(_bits(take(features[order], labels[order])), slice(None), bits, order):
                return False
    except MemoryError:
        raise
    except RAISED:
        return False
    return True


def _is_so_arranged(take: Take, kind: Kind, n_tile: int) -> bool:
    """Tell it of one tile of records in all arrangements. Raises whatever the model raises."""
    features, labels = kind.features(n_tile, seed=2), kind.labels(n_tile)
    expected = _bits(take(features, labels))
    if n_tile == 1:  # nobody is beside it; others may have been before it
        _show(take, features, labels)
    return all(
        _are_same(_bits(take(others, labels[order])), is_kept, expected, order[is_kept])
        for others, order, is_kept in _arrangements(features)
    )


def _passes(take: Take, kind: Kind, n_rows: int, n_made: int) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
    """Yield `n_made` records with labels, and the bits of a pass of the first `n_rows`, until enough were tried.

    Two passes at least: of numbers above zero, and of both signs.
    """
    labels = kind.labels(n_made)
    for seed in itertools.count():
        features = kind.features(n_made, seed)
        bits = _bits(take(features[:n_rows], labels[:n_rows]))
        yield features, labels, bits
        n_rounded = max(kind.n_numbers, sum(value[0].numel() for value in bits))
        if seed > 0 and (seed + 1) * n_rows >= min(_ENOUGH, _ENOUGH_NUMBERS // n_rounded):
            return


def _show(take: Take, features: Tensor, labels: Tensor) -> None:
    """Take passes of records of every magnitude: a model or a loss that keeps the largest is another then."""
    for filling in _FILLINGS if features.is_floating_point() else ():
        with suppress(*RAISED):
            take(torch.full_like(features, filling), labels)


def is_as_in_tile(take: Take, kind: Kind, *, n_rows: int, n_tile: int) -> bool:
    """Return whether a pass of `n_rows` records is bit-exact, and gives each record the bits of a tile of `n_tile`.

    Then a record's gradient depends on neither who is beside it nor on how many are.
    """
    n_made = -(-n_rows // n_tile) * n_tile
    try:
        if not _is_so_arranged(take, kind, n_rows):
            return False
        for features, labels, bits in _passes(take, kind, n_rows, n_made):
            for start in range(0, n_rows, n_tile):
                tile, n_shared = slice(start, start + n_tile), min(n_tile, n_rows - start)
                expected = _bits(take(features[tile].clone(), labels[tile].clone()))  # where tensors begin
                if not _are_same(bits, slice(start, start + n_shared), expected, slice(n_shared)):
                    return False
    except MemoryError:
        raise
    except RAISED:
        return False
    return True


def made_up_records(example: Tensor, n: int, *, seed: int = 2, n_tokens: int = 2) -> Tensor:
    """Return noise of different brightness, or two tokens of every vocabulary, of the example's shape; (n, ..).

    With an odd seed the noise is of a normal law, no record is dim, and texts are of all tokens. Sums cancel then, and
    are rounded more visibly. Some models take no negative numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (n, *example.shape)
    if not example.is_floating_point():
        return torch.randint(0, n_tokens if seed % 2 else 2, shape, generator=generator)
    if seed % 2:
        return torch.randn(shape, generator=generator)
    brightness = torch.linspace(1.0, 0.05, n).view(n, *[1] * example.dim())
    return brightness * torch.rand(shape, generator=generator)


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
    """Tell whether some records' bits are the others', but for those of NaN, which are many."""
    return all(_is_same(ours[here], theirs[there]) for ours, theirs in zip(found, expected, strict=True))


def _is_same(ours: Tensor, theirs: Tensor) -> bool:
    if torch.equal(ours, theirs):
        return True
    is_other = ours != theirs
    return bool(all(value[is_other].view(torch.float64).isnan().all() for value in (ours, theirs)))
