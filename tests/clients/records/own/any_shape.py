"""A model of two classes for records of any shape: whatever is refused, is refused for the records."""

from __future__ import annotations

from torch import Tensor, nn


class AnyShape(nn.Module):
    """Reads the mean of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, ..) -> (batch, 2)."""
        logits: Tensor = self.linear(features.flatten(1).mean(dim=1, keepdim=True))
        return logits
