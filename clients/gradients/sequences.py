"""Gradients sum_t b_t a_t^T of records that are short sequences, which are not formed.

Where a sequence has fewer places than a has entries, the two factors are smaller than their product. Its norm comes
from the products of each pair of places (the "ghost norm"). A sum over records is one matrix product. Source: Li et
al., "Large Language Models Can Be Strong Differentially Private Learners", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from precad.clients.gradients.segments import Segments, segment_products

_UNIT_ROUNDOFF: Final = 2.0**-53


@dataclass(frozen=True, slots=True)
class Sequences:
    """g_s = sum_t b_st a_st^T. a (n, T, r) and b (n, T, outputs), both float64."""

    a: Tensor
    b: Tensor

    def squared_norms(self) -> Tensor:
        """Bound ||g_s||^2 from above: places may cancel one another, and what is left is then rounding.

        sum_{t,u} (a_t a_u)(b_t b_u) is computed to within c S^2, with S = sum_t ||a_t|| ||b_t|| and c the number of
        additions times 2^-53. The weighted sum is rounded to within c S as well. So (sqrt(. + c S^2) + c S)^2.
        """
        n_places, of_a, of_b = self.a.shape[1], self.a.shape[2], self.b.shape[2]
        grams = torch.bmm(self.a, self.a.transpose(1, 2)) * torch.bmm(self.b, self.b.transpose(1, 2))
        squares = grams.flatten(start_dim=1).sum(dim=1)
        most = (torch.linalg.vector_norm(self.a, dim=2) * torch.linalg.vector_norm(self.b, dim=2)).sum(dim=1)
        c = (n_places**2 + of_a + of_b + 8) * _UNIT_ROUNDOFF
        bound: Tensor = ((squares.clamp(min=0.0) + c * most.square()).sqrt() + c * most).square()
        # `clamp` would hide that a product is no number
        return torch.where(squares.isfinite(), bound, squares)

    def weighted_sums(self, factors: Tensor, segments: Segments) -> Tensor:
        """Return one matrix product per client, over its records' places."""
        n_places = self.a.shape[1]
        weighted = (self.b * factors[:, None, None]).flatten(0, 1)
        places = [slice(part.start * n_places, part.stop * n_places) for part in segments]
        return segment_products(weighted, self.a.flatten(0, 1), places).flatten(start_dim=1)

    def factors(self) -> tuple[Tensor, ...]:
        """See LayerGradients."""
        return self.a, self.b

    def without(self, is_left_out: Tensor) -> Sequences:
        """See LayerGradients."""
        a, b = (value.masked_fill(is_left_out[:, None, None], 0.0) for value in (self.a, self.b))
        return Sequences(a, b)


def factors_of(reads: list[Tensor], writes: list[Tensor], *, n_trained: int) -> tuple[Tensor, Tensor]:
    """Return a (n, T, r) and b (n, T, outputs) over all calls; columns that are not trained have a = 0."""
    a, b = (_joined([one.reshape(len(one), -1, one.shape[-1]) for one in each]) for each in (reads, writes))
    if n_trained < a.shape[-1]:
        a = torch.cat([a[..., :n_trained], torch.zeros_like(a[..., n_trained:])], dim=-1)
    return a, b


def _joined(calls: list[Tensor]) -> Tensor:
    """Put the places of all calls side by side; a single call is not copied."""
    return calls[0] if len(calls) == 1 else torch.cat(calls, dim=1)
