"""The gradients of single records from one forward and one backward pass: what layers read and wrote on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from precad.clients.errors import LayerRowsError
from precad.clients.gradients.layers import RULES, LayerGradients, owners
from precad.clients.models.adapters import AdaptedLayer, merged_layers
from precad.clients.models.losses import Loss

Take = Callable[[Tensor, Tensor, Loss], list[LayerGradients]]
"""Features, labels and loss to the gradients of a batch's records, layer by layer."""
_ROW_STEP: Final = 16
"""Rows of a matrix begin at multiples of so many numbers: of 64 bytes in float32."""


@contextmanager
def prepared(model: nn.Module) -> Iterator[Take]:
    """Yield what takes passes of a model whose parameters stay as they are: adapters are merged once for all passes.

    What is yielded raises LayerRowsError.
    """
    with merged_layers(model) as adapted_layers:
        layers = [adapted_layers.get(layer, layer) for _, layer in owners(model)]
        yield functools.partial(recorded_pass, model, layers, layers)


def one_pass(model: nn.Module, features: Tensor, labels: Tensor, loss: Loss) -> list[LayerGradients]:
    """Return the gradients of a batch's records, layer by layer of `model`. Raises: LayerRowsError."""
    with prepared(model) as take:
        return take(features, labels, loss)


def recorded_pass(
    model: nn.Module,
    watched: Sequence[nn.Module],
    layers: Sequence[nn.Module],
    features: Tensor,
    labels: Tensor,
    loss: Loss,
) -> list[LayerGradients]:
    """Forward and backward once. Parameters take no part in the backward pass: only what layers wrote does.

    watched: the modules of `model` that stand for `layers`, one by one; they are the same unless a stack of models runs
    (`precad.clients.gradients.model_stack`).
    Raises: LayerRowsError.
    """
    tape = Tape(watched, n_rows=len(features))
    with tape.recording(), torch.enable_grad():
        return gradients_of(loss.total(model, features, labels), layers, tape)


def gradients_of(total: Tensor, layers: Sequence[nn.Module], tape: Tape) -> list[LayerGradients]:
    """Go backward from the loss of a pass that `tape` has recorded. Raises: LayerRowsError."""
    tape.require_untouched()
    gradients = iter(torch.autograd.grad(total, [edge for edges in tape.edges for edge in edges]))
    return [
        RULES[type(layer)](layer, reads, [next(gradients) for _ in edges])
        for layer, reads, edges in zip(layers, tape.reads, tape.edges, strict=True)
    ]


class Tape:
    """Hold what the layers read during one forward pass, and where autograd is asked for the gradients of what they
    wrote."""

    def __init__(self, layers: Sequence[nn.Module], *, n_rows: int) -> None:
        """n_rows: records of the batch. A layer that reads some of them only, or something else, is refused."""
        self.layers = layers
        self.reads: list[list[Tensor]] = [[] for _ in layers]
        self.n_written: list[int] = [0] * len(layers)
        """Numbers that each layer wrote for a record. What it wrote is not kept: the backward pass frees it."""
        self.edges: list[list[GradientEdge]] = [[] for _ in layers]
        """Where autograd is asked: at what was written, whatever overwrites it in place later on."""
        self._n_rows = n_rows
        self._watched: list[tuple[nn.Module, Tensor, int]] = []

    def recording(self) -> _Hooks:
        """Watch the layers while it is entered."""
        return _Hooks(self)

    def note(self, index: int, read: Tensor, output: Tensor) -> Tensor:
        """Make the output a place at which autograd can be asked. Keep what the layer's rule reads.

        Raises: LayerRowsError.
        """
        if not read.shape[:1] == output.shape[:1] == (self._n_rows,):
            raise LayerRowsError(type(self.layers[index]).__name__, "reads or writes other rows than the batch has")
        if not output.requires_grad:  # nothing before it is asked for, so the backward pass ends here
            output = output.detach().requires_grad_()
        layer = self.layers[index]
        needed = [output] if output._is_view() else []  # autograd forgets what a view was before
        if isinstance(layer, AdaptedLayer):  # of its inputs A x alone is needed, which is shorter
            self.reads[index].append(layer.read_by_b(read.detach()))
        else:
            self.reads[index].append(read.detach())
            needed.append(read)
        self.n_written[index] += output[0].numel()
        self.edges[index].append(get_gradient_edge(output))
        self._watched += [(layer, value, value._version) for value in needed]
        return output

    def require_untouched(self) -> None:
        """Refuse a pass in which a needed tensor that a layer read or wrote was overwritten. Raises: LayerRowsError."""
        for layer, value, version in self._watched:
            if value._version != version:
                raise LayerRowsError(type(layer).__name__, "read or wrote what was overwritten later on")


class _Hooks:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        def noting(index: int) -> Any:
            return lambda _layer, read, output: self._tape.note(index, read[0], output)

        for index, layer in enumerate(self._tape.layers):
            if type(layer) is nn.Linear:
                self._handles.append(layer.register_forward_pre_hook(lambda _layer, read: (_in_step(read[0]),)))
            self._handles.append(layer.register_forward_hook(noting(index)))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _in_step(read: Tensor) -> Tensor:
    """Return the same matrix with rows that all lie alike in memory.

    Some kernels of a CPU add up a row in the order that its first address asks for. A record's place in the batch then
    decides how its outputs are rounded (`precad.clients.gradients.bit_exactness`).
    """
    if read.dim() != 2 or read.device.type != "cpu" or (read.stride(1) == 1 and read.stride(0) % _ROW_STEP == 0):
        return read
    width = read.shape[1]
    return nn.functional.pad(read, (0, -width % _ROW_STEP)).contiguous()[:, :width]
