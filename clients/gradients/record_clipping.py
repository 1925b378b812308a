"""Clipping of single records: what one of them adds to its client's sum is at most R long, whatever it holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch
from torch import Tensor

from precad.clients.errors import ArgumentError, NonFiniteGradientError
from precad.clients.gradients.layers import LayerGradients, Segments

ROUNDING_SLACK: Final = 2.0**-34
"""Relative room that clipping leaves below R, for whatever float64 rounds afterwards: docs/explanation/privacy.md has
the sum."""


class Clipping(StrEnum):
    """The norms that a record's bound R limits."""

    FLAT = "flat"
    """The norm over all parameters, by R."""
    PER_LAYER = "per-layer"
    """The norm over each of the L layers' parameters, by R / sqrt(L); together at most R."""


@dataclass(frozen=True, slots=True)
class RecordClip:
    """R, and what it limits."""

    norm: float
    """R: L2 bound on one record's clipped gradient. Infinity clips nothing, for training without privacy."""
    kind: Clipping = Clipping.FLAT

    def __post_init__(self) -> None:
        if not self.norm > 0:  # this form refuses NaN too
            raise ArgumentError(f"record_clip_norm: expected a number above 0, found {self.norm}")


def clipped_sums(gradients: Sequence[LayerGradients], clip: RecordClip, segments: Segments) -> Tensor:
    """Return sum over the records s of each segment of g_s * min(1, R' / ||g_s||_2); (len(segments), d), float64.

    R' = R (1 - `ROUNDING_SLACK`). Records that are in no segment are padding. A record whose gradient is not finite
    adds zero. An error
    would not do: whether there is one depends on what the record holds. A client that stays away after an error tells
    all who see its absence, and takes its other records along.
    Raises: NonFiniteGradientError, where R is infinite and nothing is private.
    """
    squares = [layer.squared_norms() for layer in gradients]
    is_bad = ~_over_layers(squares).isfinite()
    if is_bad.any():
        if math.isinf(clip.norm):
            _refuse_bad(is_bad, segments)
        gradients = [layer.without(is_bad) for layer in gradients]
        squares = [square.masked_fill(is_bad, 0.0) for square in squares]
    factors = clip_factors(squares, RecordClip(clip.norm * (1 - ROUNDING_SLACK), clip.kind))
    return torch.cat([layer.weighted_sums(f, segments) for layer, f in zip(gradients, factors, strict=True)], dim=1)


def are_finite(gradients: Sequence[LayerGradients]) -> Tensor:
    """Return for each record of a pass, (n,), whether its gradient adds more than zero to a sum."""
    return _over_layers([layer.squared_norms() for layer in gradients]).isfinite()


def _refuse_bad(is_bad: Tensor, segments: Segments) -> None:
    """Padding is nobody's. Raises NonFiniteGradientError for records."""
    if n_bad := sum(int(is_bad[part].sum()) for part in segments):
        raise NonFiniteGradientError(n_bad=n_bad, n_records=sum(part.stop - part.start for part in segments))


def _over_layers(squares: Sequence[Tensor]) -> Tensor:
    """L of (n,) -> (n,), added up layer by layer: a reduction's order may depend on a record's place."""
    return functools.reduce(torch.add, squares)


def clip_factors(squares: Sequence[Tensor], clip: RecordClip) -> list[Tensor]:
    """Return for each layer the factor of each record: min(1, bound / norm), and 1 where the norm is zero; float64
    (n,).

    squares: ||g_s||^2 by layer and record, L of (n,), finite.
    """
    if math.isinf(clip.norm):
        return [torch.ones_like(square) for square in squares]
    if clip.kind is Clipping.FLAT:
        return [_factors(_over_layers(squares), clip.norm)] * len(squares)
    return [_factors(square, clip.norm / math.sqrt(len(squares))) for square in squares]


def _factors(squares: Tensor, bound: float) -> Tensor:
    return bound / squares.sqrt().clamp(min=bound)
