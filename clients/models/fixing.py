"""Put layers that treat records separately in the place of those that do not."""

from __future__ import annotations

import copy
from typing import Final

from torch import nn

_MOST_GROUPS: Final = 32
"""Groups of the original GroupNorm (Wu and He, 2018)."""


def fix(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose layers treat records separately, with all of its parameters.

    Batch normalisation becomes a GroupNorm over the same channels, which keeps scale and shift and drops running
    statistics. Instance normalisation drops them too. Dropout is switched off: it is drawn anew for every batch, and a
    record's gradient must depend on that record alone. Anything else is as it was. The copy is another model: train it
    from its start, or expect its accuracy to change.

    Raises: ValueError for what is no model, and for a lazy layer whose sizes are not known yet.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"fix: expected a torch.nn.Module, found a {type(model).__name__}")
    if (lazy := unsized(model)) is not None:
        raise ValueError(f"fix: expected layers of known sizes, found {type(lazy).__name__}; run the model once")
    fixed = copy.deepcopy(model)
    for name, layer in list(fixed.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            replaced = _group_norm(layer)
            if not name:
                return replaced
            parent, _, child = name.rpartition(".")
            setattr(fixed.get_submodule(parent), child, replaced)
        elif isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        else:
            switch_dropout_off(layer)
    return fixed


def unsized(model: nn.Module) -> nn.Module | None:
    """Return a lazy layer without parameters, which needs its first input to know its sizes; None without one."""
    return next((layer for layer in model.modules() if _is_unsized(layer)), None)


def _is_unsized(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params()


def dropout_of(layer: nn.Module) -> float:
    """Return the probability with which a layer drops its values in training; 0 for layers that draw nothing."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return float(layer.p)
    return float(layer.dropout) if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) else 0.0


def switch_dropout_off(layer: nn.Module) -> None:
    """Set the probability with which a layer drops values to zero, in place."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        layer.p = 0.0
    elif isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        layer.dropout = 0.0


def _group_norm(layer: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    """Return a GroupNorm over the same channels, with at least two channels a group where there are two."""
    n = layer.num_features
    is_flat = isinstance(layer, nn.BatchNorm1d)  # of vectors: a small group's values would say little of each other
    n_groups = 1 if is_flat else max(g for g in range(1, _MOST_GROUPS + 1) if n % g == 0 and (n // g > 1 or g == 1))
    norm = nn.GroupNorm(n_groups, n, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias
    return norm.to(layer.weight.device) if layer.affine else norm
