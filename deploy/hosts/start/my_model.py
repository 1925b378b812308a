"""The model of train.toml: any torch.nn.Module. Six inputs: age, pressure, two for sex, two for smoker."""

from torch import nn


def net() -> nn.Module:
    """Return a new model. PyTorch's generator has a seed, which task.model_seed names."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
