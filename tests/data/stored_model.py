"""The model of the stored run: it sees four numbers of an image, so that its files are small."""

from __future__ import annotations

from torch import nn


def small() -> nn.Module:
    """Return 50 parameters: the mean of each quarter of an image, and one linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 10))
