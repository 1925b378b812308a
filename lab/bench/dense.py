"""A model of any number of parameters, for `precad bench overhead`: one hidden layer over the pixels of an image."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

NAME: Final = "precad.lab.bench.dense:network"
PIXELS: Final = {"digits": 8 * 8, "mnist": 28 * 28, "fashion-mnist": 28 * 28}
CLASSES: Final = 10


def network(pixels: int, hidden: int) -> nn.Module:
    """Return the model of so many hidden units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def section(parameters: int, dataset: str) -> dict[str, Any]:
    """Return the model's part of the `[task]` section: so many parameters at least, for the images of a data set."""
    pixels = PIXELS[dataset]
    hidden = -(-(parameters - CLASSES) // (pixels + 1 + CLASSES))
    return {"model": NAME, "model_arguments": {"pixels": pixels, "hidden": max(1, hidden)}}
