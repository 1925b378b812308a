"""The models clients train, and the flat vector that stands for one on the wire.

A model travels as one float32 vector of shape (d,): its parameters in the order of `nn.Module.named_parameters`, each
flattened in row-major order. d is `dimension(name)`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clients.datasets import N_CLASSES
from clients.errors import DimensionError, UnknownNameError


def _mlp() -> nn.Module:
    """One hidden layer of 64 tanh units on 8x8 images: d = 4810. (batch, 1, 8, 8) -> logits (batch, 10).

    Each image is first brought to mean 0 and variance 1 by itself, which uses no statistic of other records. On the
    digits this gains about one point of accuracy at epsilon = 2.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.LayerNorm(8 * 8, elementwise_affine=False),
        nn.Linear(8 * 8, 64),
        nn.Tanh(),
        nn.Linear(64, N_CLASSES),
    )


def _cnn() -> nn.Module:
    """The small CNN of Opacus' MNIST example: d = 26 010. (batch, 1, 28, 28) -> logits (batch, 10).

    Source: pytorch/opacus, examples/mnist.py, class SampleConvNet.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),  # (batch, 16, 14, 14)
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=1),  # (batch, 16, 13, 13)
        nn.Conv2d(16, 32, kernel_size=4, stride=2),  # (batch, 32, 5, 5)
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=1),  # (batch, 32, 4, 4)
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, N_CLASSES),
    )


_BUILDERS: Final[Mapping[str, Callable[[], nn.Module]]] = MappingProxyType({"mlp": _mlp, "cnn": _cnn})

IMAGE_SIDE: Final[Mapping[str, int]] = MappingProxyType({"mlp": 8, "cnn": 28})
"""Side in pixels of the square one-channel images that each model takes."""


def build(name: str, *, seed: int = 0) -> nn.Module:
    """The model of that name, on the CPU, with PyTorch's default initialisation drawn from `seed`.

    The same seed gives the same parameters in every process, and the global generator of torch is left as it was.
    The start of training is public, so this generator need not be cryptographic.
    Raises: UnknownNameError.
    """
    if name not in _BUILDERS:
        raise UnknownNameError("model", name, known=sorted(_BUILDERS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[name]()


def dimension(name: str) -> int:
    """d, the number of parameters of the model of that name."""
    return parameter_count(build(name))


def parameter_count(model: nn.Module) -> int:
    """d, the number of parameters of `model`."""
    return sum(parameter.numel() for parameter in model.parameters())


def initial_parameters(name: str, *, seed: int) -> NDArray[np.float32]:
    """theta_0 as a flat vector (d,): what both servers start from, given the same public seed."""
    return flatten(build(name, seed=seed))


def flatten(model: nn.Module) -> NDArray[np.float32]:
    """The parameters of `model` as one new float32 vector (d,)."""
    with torch.no_grad():
        vector = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    return np.array(vector.cpu().numpy(), dtype=np.float32)


def unflatten(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """The parameters that `vector` (d,) stands for, by name, in the shapes of `model`; inverse of `flatten`.

    The result serves `torch.func.functional_call` and `nn.Module.load_state_dict` alike. Its tensors are views of
    `vector`: they keep its device and dtype. `model` gives names and shapes only and is not changed.
    Raises: DimensionError.
    """
    expected = parameter_count(model)
    if vector.shape != (expected,):
        raise DimensionError(expected=expected, got=tuple(vector.shape))
    parts = torch.split(vector, [parameter.numel() for parameter in model.parameters()])
    return {
        name: part.view(parameter.shape)
        for part, (name, parameter) in zip(parts, model.named_parameters(), strict=True)
    }
