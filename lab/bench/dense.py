"""A model of any number of parameters, for `precad bench overhead`: one hidden layer over 28 x 28 pixels."""

from __future__ import annotations

from typing import Final

from torch import nn

NAME: Final = "precad.lab.bench.dense:network"
PIXELS: Final = 28 * 28
CLASSES: Final = 10


def network(hidden: int) -> nn.Module:
    """Return the model of so many hidden units: 795 parameters for each, and ten."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def hidden_units(parameters: int) -> int:
    """Return how many hidden units give at least so many parameters; one at least."""
    return max(1, -(-(parameters - CLASSES) // (PIXELS + 1 + CLASSES)))
