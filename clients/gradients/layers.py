"""The gradients of single records, layer by layer, from one pass over the batch.

A layer's parameters enter the loss of record s only through two tensors: a_s and b_s. The layer read a_s, and b_s is
the loss's gradient with respect to what the layer wrote. Both fall off an ordinary forward and backward pass; no
gradient of a weight is asked of autograd. A layer that ran once on one vector per record has the gradient b_s a_s^T.
This one is never formed: its norm is ||b_s|| ||a_s||, and a weighted sum over records is one matrix product. Other
gradients are formed, one row per record.

Source for the linear layer: Goodfellow, "Efficient Per-Example Gradient Computations", 2015. Source for the
convolution: Rochette, Manoel and Tramel, "Efficient Per-Example Gradient Computations in Convolutional Neural
Networks", 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from precad.clients.errors import ArgumentError
from precad.clients.gradients.segments import LOOPING_DEVICES, segment_products
from precad.clients.gradients.segments import Segments as Segments  # noqa: PLC0414 - offered here too
from precad.clients.gradients.sequences import Sequences, factors_of
from precad.clients.models.adapters import AdaptedLayer, Columns
from precad.clients.models.constants import has_constants


class LayerGradients(Protocol):
    """The gradients of one layer's parameters, for each of n records."""

    def squared_norms(self) -> Tensor:
        """Return ||g_s||^2 for each record, over all parameters of the layer; (n,), float64."""

    def weighted_sums(self, factors: Tensor, segments: Segments) -> Tensor:
        """Return sum over the records s of each segment of factors_s g_s; (len(segments), k), float64, in the flat
        order."""

    def factors(self) -> tuple[Tensor, ...]:
        """Return what g_s is made of by products of single entries; (n, ..) each, float64.

        A product of two float64 is rounded in one way. So the bits of these decide those of g_s, which need not be
        formed to be compared.
        """

    def without(self, is_left_out: Tensor) -> LayerGradients:
        """Return these gradients with zero for the records that are left out, (n,) bool."""


@dataclass(frozen=True, slots=True)
class Outer:
    """g_s = b_s a_s^T, and b_s for a bias: a linear layer that ran once, on one vector per record.

    a (n, inputs) and b (n, outputs), both float64, so that norms and sums are those of the very same gradients.
    """

    a: Tensor
    b: Tensor
    has_bias: bool

    def squared_norms(self) -> Tensor:
        """Return ||b||^2 (||a||^2 + 1 for the bias)."""
        of_a = self.a.square().sum(dim=1)
        return self.b.square().sum(dim=1) * (of_a + 1.0 if self.has_bias else of_a)

    def weighted_sums(self, factors: Tensor, segments: Segments) -> Tensor:
        """Take one matrix product per client; for all together where they have a record each, and on an accelerator."""
        weighted = self.b * factors[:, None]
        parts = [segment_products(weighted, self.a, segments).flatten(start_dim=1)]
        if self.has_bias:
            parts.append(segment_products(torch.ones_like(factors)[:, None], weighted, segments)[:, 0])
        return torch.cat(parts, dim=1)

    def factors(self) -> tuple[Tensor, ...]:
        """See LayerGradients."""
        return self.a, self.b

    def without(self, is_left_out: Tensor) -> Outer:
        """See LayerGradients."""
        a, b = (value.masked_fill(is_left_out[:, None], 0.0) for value in (self.a, self.b))
        return Outer(a, b, self.has_bias)


@dataclass(frozen=True, slots=True)
class Rows:
    """Gradients that were formed: one row per record and parameter.

    Every block is (n, k) in float64. `orders` brings a block's columns into the order of its parameter: a shape to
    read the columns in and a permutation of its axes. None stands for columns in order.
    """

    blocks: tuple[Tensor, ...]
    orders: tuple[tuple[tuple[int, ...], tuple[int, ...]] | None, ...]

    def squared_norms(self) -> Tensor:
        """Return the squared norms, summed over the blocks."""
        squares = [torch.linalg.vector_norm(block, dim=1).square() for block in self.blocks]
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum(dim=0)

    def weighted_sums(self, factors: Tensor, segments: Segments) -> Tensor:
        """Return one product of a vector and a matrix per client and block, or for all clients together."""
        out = []
        for block, order in zip(self.blocks, self.orders, strict=True):
            sums = segment_products(factors[:, None], block, segments)[:, 0]
            if order is not None:
                shape, axes = order
                sums = sums.view(-1, *shape).permute(0, *(1 + axis for axis in axes)).flatten(start_dim=1)
            out.append(sums)
        return torch.cat(out, dim=1)

    def factors(self) -> tuple[Tensor, ...]:
        """See LayerGradients."""
        return self.blocks

    def without(self, is_left_out: Tensor) -> Rows:
        """See LayerGradients."""
        return Rows(tuple(block.masked_fill(is_left_out[:, None], 0.0) for block in self.blocks), self.orders)


def _linear(layer: nn.Linear, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    if len(reads) == 1 and reads[0].dim() == 2:
        return Outer(reads[0].double(), writes[0].double(), has_bias=layer.bias is not None)
    a = torch.cat([_as_sequence(read) for read in reads], dim=1)
    b = torch.cat([_as_sequence(write) for write in writes], dim=1)
    blocks = [torch.bmm(b.transpose(1, 2), a).flatten(start_dim=1).double()]
    if layer.bias is not None:
        blocks.append(b.sum(dim=1, dtype=torch.float64))
    return Rows(tuple(blocks), (None,) * len(blocks))


def _columns(layer: Columns, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    """The gradient sum_t b_t a_t^T has r columns. Where there are fewer places than columns it is not formed."""
    a, b = factors_of(reads, writes, n_trained=layer.n_trained)
    if a.shape[1] == 1:
        return Outer(a[:, 0].double(), b[:, 0].double(), has_bias=False)
    if a.shape[1] < layer.n_trained:
        return Sequences(a.double(), b.double())
    return Rows((torch.bmm(b.transpose(1, 2), a).flatten(start_dim=1).double(),), (None,))


def _adapted(layer: AdaptedLayer, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    """Return the gradients of B in a layer that ran merged. reads: A x, which is scaled: it is shorter than dL/dy."""
    return _columns(layer.B, reads if layer.scale == 1.0 else [layer.scale * read for read in reads], writes)


def _as_sequence(value: Tensor) -> Tensor:
    """(n, .., k) -> (n, t, k)."""
    return value.reshape(value.shape[0], -1, value.shape[-1])


def _conv2d(layer: nn.Conv2d, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    """The kernel's gradient is the product of what was written with the patches that were read."""
    kernels, biases = [], []
    for read, write in zip(reads, writes, strict=True):
        patches = _patches(layer, read)
        b = write.permute(0, 2, 3, 1).flatten(1, 2)
        kernels.append(torch.bmm(b.transpose(1, 2), patches))
        biases.append(b.sum(dim=1, dtype=torch.float64))
    height, width = layer.kernel_size
    blocks = [_sum(kernels).flatten(start_dim=1).double()]
    orders: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = [
        ((layer.out_channels, height, width, layer.in_channels), (0, 3, 1, 2))
    ]
    if layer.bias is not None:
        blocks.append(_sum(biases))
        orders.append(None)
    return Rows(tuple(blocks), tuple(orders))


def _patches(layer: nn.Conv2d, read: Tensor) -> Tensor:
    """Return what each output pixel sees, channels last within a patch; (n, pixels, height * width * channels).

    With channels last in memory, a patch is made of long runs, and this copy is several times faster.
    """
    (pad_h, pad_w), (step_h, step_w), (grow_h, grow_w) = _pair(layer.padding), layer.stride, layer.dilation
    (height, width) = layer.kernel_size
    padded = nn.functional.pad(read, (pad_w, pad_w, pad_h, pad_h)) if pad_h or pad_w else read
    windows = padded.unfold(2, grow_h * (height - 1) + 1, step_h).unfold(3, grow_w * (width - 1) + 1, step_w)
    windows = windows[..., ::grow_h, ::grow_w]
    return windows.permute(0, 2, 3, 4, 5, 1).flatten(1, 2).flatten(start_dim=2)


def _pair(padding: Any) -> tuple[int, int]:
    assert isinstance(padding, tuple)  # `handles` lets no name ("same") pass
    return int(padding[0]), int(padding[1])


def _embedding(layer: nn.Embedding, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    """Add to every token's row what reached its vector."""
    tokens = torch.cat([read.flatten(start_dim=1) for read in reads], dim=1)
    b = torch.cat([_as_sequence(write) for write in writes], dim=1).double()
    size = (len(tokens), layer.num_embeddings, layer.embedding_dim)
    if b.device.type in LOOPING_DEVICES:
        rows = b.new_zeros(size).scatter_add_(1, tokens[..., None].expand_as(b), b)
    else:  # an accelerator adds up in any order, so one token of each record at a time
        rows, records = b.new_zeros(size), torch.arange(len(tokens), device=b.device)
        for i in range(tokens.shape[1]):
            rows[records, tokens[:, i]] += b[:, i]
    if layer.padding_idx is not None:
        rows[:, layer.padding_idx] = 0.0
    return Rows((rows.flatten(start_dim=1),), (None,))


def _layer_norm(layer: nn.LayerNorm, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    normal = [nn.functional.layer_norm(read, layer.normalized_shape, eps=layer.eps) for read in reads]
    inner = len(layer.normalized_shape)
    blocks = [_sum([_sum_between(x * b, inner) for x, b in zip(normal, writes, strict=True)])]
    if layer.bias is not None:
        blocks.append(_sum([_sum_between(b, inner) for b in writes]))
    return Rows(tuple(blocks), (None,) * len(blocks))


def _sum_between(value: Tensor, inner: int) -> Tensor:
    """(n, .., inner axes) -> (n, k), summed over the axes in the middle."""
    return (
        value.flatten(start_dim=value.dim() - inner).flatten(1, -2).sum(dim=1, dtype=torch.float64)
        if (value.dim() > inner + 1)
        else value.flatten(start_dim=1).double()
    )


def _group_norm(layer: nn.GroupNorm, reads: list[Tensor], writes: list[Tensor]) -> LayerGradients:
    normal = [nn.functional.group_norm(read, layer.num_groups, eps=layer.eps) for read in reads]
    weights = [
        (x * b).flatten(start_dim=2).sum(dim=2, dtype=torch.float64) for x, b in zip(normal, writes, strict=True)
    ]
    biases = [b.flatten(start_dim=2).sum(dim=2, dtype=torch.float64) for b in writes]
    return Rows((_sum(weights), _sum(biases)), (None, None))


def _sum(values: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, values)


RULES: Final[Mapping[type[nn.Module], Callable[[Any, list[Tensor], list[Tensor]], LayerGradients]]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    Columns: _columns,
    AdaptedLayer: _adapted,
}
"""(layer, what each of its calls read, gradients of what each wrote) to the gradients of its parameters. Exact types:
a subclass may compute something else."""


def handles(layer: nn.Module) -> bool:
    """Tell whether the rules know how this layer's own parameters enter its output."""
    if has_constants(layer):
        return False
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    if type(layer) is nn.GroupNorm:
        return layer.affine
    return type(layer) in RULES


def owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the modules with parameters of their own, by name, in the order of the flat vector."""
    return (
        (name, layer) for name, layer in model.named_modules() if any(True for _ in layer.parameters(recurse=False))
    )


def require_layer_sizes(model: nn.Module, setting: str) -> list[int]:
    """Count the parameters of each module that has its own, in the order of the flat vector; together d.

    Raises ArgumentError, which names the setting that asks for layers, where some parameters belong to several.
    """
    sizes = [sum(own.numel() for own in layer.parameters(recurse=False)) for _, layer in owners(model)]
    if sum(sizes) != sum(parameter.numel() for parameter in model.parameters()):
        raise ArgumentError(f"{setting}: expected 'flat' for a model whose layers share parameters")
    return sizes
