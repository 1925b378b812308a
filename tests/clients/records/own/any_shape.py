"""Models for records of any shape: whatever is refused, is refused for the records."""

from __future__ import annotations

from torch import Tensor, nn


class AnyShape(nn.Module):
    """Reads the mean of a record, and gives logits of two classes."""

    n_outputs = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, self.n_outputs)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, ..) -> (batch, n_outputs)."""
        logits: Tensor = self.linear(features.flatten(1).mean(dim=1, keepdim=True))
        return logits


class OneNumber(AnyShape):
    """Gives one number."""

    n_outputs = 1
