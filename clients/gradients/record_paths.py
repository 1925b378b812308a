"""Ways to the gradients of single records, which give the same where they can be taken.

    narrow pass   one pass of an adapted model, without what its outputs do not depend on
    one pass      forward and backward once, layers by `precad.clients.gradients.layers`
    vmap          torch.func, for models with layers that have no rule
    one by one    a loop over records, for what torch.func cannot batch

`precad.clients.gradients.probe` finds out which of them a model can take.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from precad.clients.gradients.layers import LayerGradients, Rows, owners
from precad.clients.gradients.narrow_pass import NarrowPasses
from precad.clients.gradients.one_pass import Take, prepared
from precad.clients.models.losses import Loss


class Path(StrEnum):
    """How an engine takes gradients of single records."""

    NARROW_PASS = "narrow-pass"  # noqa: S105 - no password
    ONE_PASS = "one-pass"  # noqa: S105 - no password
    VMAP = "vmap"
    ONE_BY_ONE = "one-by-one"


PASSES: Final = (Path.NARROW_PASS, Path.ONE_PASS)
"""Those whose layers all have a rule."""


@contextmanager
def path_of(path: Path, model: nn.Module, narrow: NarrowPasses) -> Iterator[Take]:
    """Yield what returns every record's gradient of its loss, layer by layer, while the parameters stay as they are.

    path: the one that the model was found to take. No record's content changes the path: that would move the gradients
    of the records beside it. narrow: the model's narrowed passes.
    """
    match path:
        case Path.NARROW_PASS:
            with narrow.prepared() as take:
                yield take
        case Path.ONE_PASS:
            with prepared(model) as take:
                yield take
        case Path.VMAP:
            yield functools.partial(by_vmap, model)
        case Path.ONE_BY_ONE:
            yield functools.partial(one_by_one, model)


class _Objective(nn.Module):
    """The loss of a batch as a module, so that parameters can be put in the model's place wherever the loss asks."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over the records."""
        return self._loss.total(self.model, features, labels)


def total_loss(model: nn.Module, weights: dict[str, Tensor], features: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return the sum over the records at these parameters of the model, by name."""
    at = {f"model.{name}": weight for name, weight in weights.items()}
    total: Tensor = functional_call(_Objective(model, loss), at, (features, labels))
    return total


def by_vmap(model: nn.Module, features: Tensor, labels: Tensor, loss: Loss) -> list[LayerGradients]:
    """Take gradients by torch.func on single records."""
    objective = _Objective(model, loss)

    def at_record(at: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        found: Tensor = functional_call(objective, at, (one.unsqueeze(0), label.unsqueeze(0)))
        return found

    weights = {name: parameter.detach() for name, parameter in objective.named_parameters()}
    rows: dict[str, Tensor] = vmap(grad(at_record), in_dims=(None, 0, 0))(weights, features, labels)
    return _rows_by_layer(objective, rows)


def one_by_one(model: nn.Module, features: Tensor, labels: Tensor, loss: Loss) -> list[LayerGradients]:
    """Run one forward and backward pass per record: slow, and right for whatever autograd can differentiate."""
    objective = _Objective(model, loss)
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in objective.named_parameters()}
    rows: dict[str, list[Tensor]] = {name: [] for name in weights}
    with torch.enable_grad():
        for one, label in zip(features, labels, strict=True):
            total = functional_call(objective, weights, (one.unsqueeze(0), label.unsqueeze(0)))
            found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
            for (name, weight), value in zip(weights.items(), found, strict=True):
                rows[name].append(torch.zeros_like(weight) if value is None else value)
    return _rows_by_layer(objective, {name: torch.stack(values) for name, values in rows.items()})


def _rows_by_layer(model: nn.Module, rows: dict[str, Tensor]) -> list[LayerGradients]:
    """Rows of all parameters, as those of each layer. A parameter that two layers share belongs to the first."""
    layers: list[LayerGradients] = []
    for name, layer in owners(model):
        names = [f"{name}.{own}" if name else own for own, _ in layer.named_parameters(recurse=False)]
        blocks = [rows[full].reshape(len(rows[full]), -1).double() for full in names if full in rows]
        if blocks:
            layers.append(Rows(tuple(blocks), (None,) * len(blocks)))
    return layers
