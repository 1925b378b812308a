"""Frozen parameters of a user's model: constants of its architecture, which are neither trained nor noised."""

from __future__ import annotations

from torch import nn


def with_constants(model: nn.Module) -> nn.Module:
    """Turn parameters that want no gradient into buffers of the same names, in place, and return the model.

    Everything that follows then reads the trained parameters alone: the flat vector, its dimension, the gradients. A
    `state_dict` keeps all names.
    """
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
    return model


def has_constants(layer: nn.Module) -> bool:
    """Tell whether some of the layer's own parameters are frozen. The rules for gradients know such layers not."""
    return any(layer._buffers.get(name) is not None for name in ("weight", "bias"))
