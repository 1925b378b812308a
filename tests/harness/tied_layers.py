"""A model of which no layer can be clipped by itself."""

from __future__ import annotations

import torch


class Tied(torch.nn.Module):
    """Two layers with one matrix. (batch, 1, 8, 8) -> logits (batch, 10)."""

    DIM = 64 * 64 + 64 + 64 + 64 * 10 + 10

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(64, n) for n in (64, 64, 10))
        self.second.weight = self.first.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.last(torch.tanh(self.second(torch.tanh(self.first(images.flatten(start_dim=1))))))
