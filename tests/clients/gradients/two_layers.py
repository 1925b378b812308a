"""Give the images, and the model of two layers, that tests of unusual models vary."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from precad.clients.records import Records

N = 12
IMAGES = Records(
    (np.random.default_rng(1).random((N, 1, 8, 8)) * np.linspace(1, 0.05, N)[:, None, None, None]).astype(np.float32)[
        np.random.default_rng(2).permutation(N)
    ],
    np.arange(N) % 10,
)


class TwoLayers(nn.Module):
    """Hold two layers: the model that the others vary."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.last = nn.Linear(16, 10)

    def hidden(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(images.flatten(1)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.hidden(images))
        return logits


class ZeroHead(TwoLayers):
    """Starts with logits of zero, as many networks do: no gradient reaches the layers before."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
