"""Layers with a set of parameters for each of several models, for one batch that holds the records of all of them.

The batch of a stack of R models is (R * B, ..): B records for the first, B for the second, and so on. Only layers with
parameters need to know whose record is whose; everything between them (activations, pooling, a user's own code) sees an
ordinary batch. The same calculation as `torch.func.vmap` over stacked parameters, without its overhead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from precad.clients.errors import LayerRowsError
from precad.clients.gradients.layers import owners
from precad.clients.models.adapters import Columns, first_trained

Own = Mapping[str, Tensor]
"""A layer's parameters by name, each (R, *its shape)."""


class StackedLayer(nn.Module):
    """Stands for `layer` in a stack of models. Its parameters are `own`, and `n_rows` is the batch's length R * B: both
    set anew for every pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._like = (layer,)  # a tuple hides it: a stack has no parameters of its own
        self.own: Own = {}
        self.n_rows = 0

    @property
    def layer(self) -> nn.Module:
        """Return the layer, for its settings; its parameters are not used."""
        return self._like[0]

    def forward(self, batch: Tensor) -> Tensor:
        """Map (R * B, ..) to (R * B, ..).

        Raises LayerRowsError for another batch: whose record is whose is not known.
        """
        if batch.shape[:1] != (self.n_rows,):
            raise LayerRowsError(type(self.layer).__name__, "of a stack reads other rows than the batch has")
        return _FORWARD[type(self.layer)](self.layer, self.own, batch)


def stacked(model: nn.Module) -> tuple[nn.Module, list[StackedLayer]]:
    """Return a copy of `model` for stacks, and its layers with parameters in the order of the flat vector.

    Raises KeyError for a layer that has no rule here.
    """
    stack, layers = copy.deepcopy(model), []
    for name, layer in list(owners(stack)):
        _ = _FORWARD[type(layer)]
        layers.append(StackedLayer(layer))
        if not name:
            return layers[0], layers
        parent, _, child = name.rpartition(".")
        setattr(stack.get_submodule(parent), child, layers[-1])
    return stack, layers


def load(layers: list[StackedLayer], models: Tensor, *, n_rows: int) -> None:
    """Load the models' parameters (R, d), of which the layers keep views: gradients reach `models`. n_rows: R * B."""
    shapes = [(layer, name, own.shape) for layer in layers for name, own in layer.layer.named_parameters(recurse=False)]
    parts = iter(torch.split(models, [shape.numel() for _, _, shape in shapes], dim=1))
    for layer in layers:
        layer.n_rows = n_rows
        layer.own = {
            name: next(parts).view(len(models), *own.shape) for name, own in layer.layer.named_parameters(recurse=False)
        }


def _columns(layer: Columns, own: Own, batch: Tensor) -> Tensor:
    return _linear(layer, {"weight": first_trained(own["weight"], layer.n_trained)}, batch)


def _by_model(batch: Tensor, own: Own) -> Tensor:
    """(R * B, ..) -> (R, B, ..)."""
    n_models = len(own["weight"])
    return batch.reshape(n_models, len(batch) // n_models, *batch.shape[1:])


def _linear(layer: nn.Linear, own: Own, batch: Tensor) -> Tensor:
    """Return one batched matrix product."""
    rows, weight = _by_model(batch, own).flatten(1, -2), own["weight"].transpose(1, 2)
    out = torch.baddbmm(own["bias"][:, None], rows, weight) if "bias" in own else torch.bmm(rows, weight)
    return out.view(*batch.shape[:-1], layer.out_features)


def _conv2d(layer: nn.Conv2d, own: Own, batch: Tensor) -> Tensor:
    """Return one grouped convolution: the models' channels side by side."""
    images = _by_model(batch, own).transpose(0, 1).flatten(1, 2)
    bias = own["bias"].flatten() if "bias" in own else None
    out = nn.functional.conv2d(
        images, own["weight"].flatten(0, 1), bias, layer.stride, layer.padding, layer.dilation, len(own["weight"])
    )
    return out.view(len(out), -1, layer.out_channels, *out.shape[2:]).transpose(0, 1).flatten(0, 1)


def _embedding(layer: nn.Embedding, own: Own, batch: Tensor) -> Tensor:
    """Every model's rows below one another, and tokens counted through. Padding has no gradient, as in PyTorch."""
    first = torch.arange(len(own["weight"]), device=batch.device) * layer.num_embeddings
    tokens = _by_model(batch, own)
    places = tokens + first.view(-1, *[1] * (tokens.dim() - 1))
    out = nn.functional.embedding(places, own["weight"].flatten(0, 1))
    if layer.padding_idx is not None:
        out = torch.where((tokens == layer.padding_idx)[..., None], out.detach(), out)
    return out.flatten(0, 1)


def _layer_norm(layer: nn.LayerNorm, own: Own, batch: Tensor) -> Tensor:
    normal = nn.functional.layer_norm(batch, layer.normalized_shape, eps=layer.eps)
    return _scaled(normal, own, batch.dim() - len(layer.normalized_shape))


def _group_norm(layer: nn.GroupNorm, own: Own, batch: Tensor) -> Tensor:
    normal = nn.functional.group_norm(batch, layer.num_groups, eps=layer.eps)
    channels_last = normal.movedim(1, -1)
    return _scaled(channels_last, own, channels_last.dim() - 1).movedim(-1, 1)


def _scaled(batch: Tensor, own: Own, n_shared: int) -> Tensor:
    """Times weight plus bias, which know nothing of the first `n_shared` axes of the batch."""
    rows = _by_model(batch, own)

    def widened(parameter: Tensor) -> Tensor:
        return parameter.view(len(parameter), *[1] * n_shared, *parameter.shape[1:])

    out = rows * widened(own["weight"])
    return (out + widened(own["bias"]) if "bias" in own else out).flatten(0, 1)


_FORWARD: Final[Mapping[type[nn.Module], Callable[[Any, Own, Tensor], Tensor]]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    Columns: _columns,
}
"""Forward passes of the layers that `precad.clients.gradients.layers` knows. Exact types, as there."""
