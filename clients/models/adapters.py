"""Low-rank adapters: y = base(x) + scale * B A x, of which B alone is trained.

The base and A are constants, so a sum of clients' updates is the sum of their adapters' differences. That would not
hold were A trained as well. A has orthonormal rows, so B's columns are learnt on one scale. B begins at zero: the
adapted model is the base at first.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
With a constant A: Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", 2024.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor, nn

from precad.clients.errors import AdapterError
from precad.clients.models.fixing import switch_dropout_off

_MARK: Final = "_precad_adaptation"


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Hold the settings that all adapters of a model share."""

    rank: int
    """r: rows of each A, columns of each B."""
    alpha: float
    """Numerator of the scale alpha / r."""

    @property
    def scale(self) -> float:
        """Return what B A x is multiplied with."""
        return self.alpha / self.rank


class Columns(nn.Linear):
    """B, (outputs, r). The first `n_trained` columns get gradients; the others stay as the servers have them."""

    def __init__(self, rank: int, n_outputs: int) -> None:
        super().__init__(rank, n_outputs, bias=False)
        self.n_trained = rank
        nn.init.zeros_(self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Map (.., r) to (.., outputs)."""
        return nn.functional.linear(input, first_trained(self.weight, self.n_trained))


def first_trained(weight: Tensor, n_trained: int) -> Tensor:
    """Return the same values (.., r), whose gradients reach the first columns alone."""
    if n_trained == weight.shape[-1]:
        return weight
    return torch.cat([weight[..., :n_trained], weight[..., n_trained:].detach()], dim=-1)


class AdaptedLayer(nn.Module):
    """Add an adapter to a layer that is linear in its last axis."""

    def __init__(self, name: str, base: nn.Module, a: Tensor, scale: float) -> None:
        """name: within the adapted model. a: (r, inputs)."""
        super().__init__()
        self.name, self.scale, self.base = name, scale, base
        self.register_buffer("A", a)
        self.B = Columns(len(a), sizes_of(base)[1])
        self.whole_weight: Tensor | None = None
        """W + scale B A, (outputs, inputs), within `merged_layers`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (.., inputs) to (.., outputs)."""
        if self.whole_weight is not None:
            return nn.functional.linear(x, self.whole_weight, cast("Tensor | None", self.base.bias))
        out: Tensor = self.base(x) + self.scale * self.B(self.read_by_b(x))
        return out

    def read_by_b(self, x: Tensor) -> Tensor:
        """Return A x; (.., inputs) -> (.., r)."""
        assert isinstance(self.A, Tensor)
        return nn.functional.linear(x, self.A)

    def merge(self) -> Tensor:
        """Return W + scale B A, which has no gradient."""
        assert isinstance(self.A, Tensor)
        assert isinstance(self.base.weight, Tensor)
        weight = self.base.weight.T if is_transposed(self.base) else self.base.weight
        return torch.addmm(weight, self.B.weight.detach(), self.A, alpha=self.scale)


@contextlib.contextmanager
def merged_layers(model: nn.Module) -> Iterator[dict[nn.Module, AdaptedLayer]]:
    """Let each adapted layer of a model run as one linear layer while this is entered; yield the layers by their B.

    A pass then has one product in the place of three. Nothing reaches B, whose gradient is scale dL/dy (A x)^T.
    """
    layers: dict[nn.Module, AdaptedLayer] = {
        layer.B: layer for layer in model.modules() if isinstance(layer, AdaptedLayer)
    }
    try:
        for layer in layers.values():
            layer.whole_weight = layer.merge()
        yield layers
    finally:
        for layer in layers.values():
            layer.whole_weight = None


def lora(
    model: nn.Module, rank: int, targets: Sequence[str], *, alpha: float | None = None, seed: int | None = None
) -> nn.Module:
    """Return a copy of `model` with an adapter on each target, all else being constants.

        rank     r, of every adapter
        targets  names of linear layers, whole or from a dot on, as `peft` reads them
        alpha    of the scale alpha / rank, which is 1 where none is named
        seed     of A; None: the one that PyTorch's generator was given, as precad does before it makes a model

    Dropout is switched off, as a constant base draws nothing. No copy of the base is made for a record, and the
    vector's length does not depend on the base.


    Raises: AdapterError, naming the target.

        >>> from torch import nn
        >>> base = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 5))
        >>> model = precad.lora(base, rank=8, targets=["0", "2"])
        >>> [(name, tuple(weight.shape)) for name, weight in model.named_parameters() if weight.requires_grad]
        [('0.B.weight', (200, 8)), ('2.B.weight', (5, 8))]
    """
    _require_arguments(model, rank, targets, alpha)
    shared = Adaptation(int(rank), float(rank if alpha is None else alpha))
    if adapted(model) is not None:
        raise AdapterError("model", "expected one without adapters", "one that has them")
    root = copy.deepcopy(model).requires_grad_(requires_grad=False)
    for layer in root.modules():
        switch_dropout_off(layer)
    drawn_from = torch.initial_seed() if seed is None else seed
    made: dict[int, AdaptedLayer] = {}
    for name in _target_names(root, targets):
        layer = root.get_submodule(name)
        if isinstance(layer, AdaptedLayer):  # of a block with two names, adapted under the first one
            continue
        if id(layer) not in made:
            a = orthonormal_rows(rank, sizes_of(layer)[0], seed=drawn_from, name=name)
            made[id(layer)] = AdaptedLayer(name, layer, a, shared.scale)
        parent, _, child = name.rpartition(".")
        setattr(root.get_submodule(parent), child, made[id(layer)])
    setattr(root, _MARK, shared)
    return root


def _require_arguments(model: object, rank: object, targets: object, alpha: object) -> None:
    """Refuse what is no model, no names of layers, or no rank and scale. Raises AdapterError."""
    if not isinstance(model, nn.Module):
        raise AdapterError("model", "expected a torch.nn.Module", f"a {type(model).__name__}")
    if isinstance(targets, str) or not isinstance(targets, Iterable) or not targets:
        raise AdapterError("targets", "expected names of layers, such as ['q_lin', 'v_lin']", repr(targets))
    are_numbers = not isinstance(rank, bool) and not isinstance(alpha, bool)
    is_rank = isinstance(rank, numbers.Integral) and int(rank) >= 1
    is_scale = alpha is None or (isinstance(alpha, numbers.Real) and 0 < float(alpha) < float("inf"))
    if not (are_numbers and is_rank and is_scale):
        found = f"{rank!r:.60}, {alpha!r:.60}"
        raise AdapterError("rank, alpha", "expected a rank of 1 or more and a finite alpha > 0", found)


def _target_names(root: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the names of all layers that the targets mean. Raises AdapterError for one that cannot be adapted."""
    layers = {name: layer for name, layer in root.named_modules(remove_duplicate=False) if name}
    found: list[str] = []
    for target in targets:
        meant = [name for name in layers if name == target or name.endswith(f".{target}")]
        if not meant:
            known = ", ".join(sorted({name.rpartition(".")[2] for name, layer in layers.items() if _is_linear(layer)}))
            raise AdapterError("targets", f"expected names that end in one of {known or 'no linear layer'}", target)
        for name in meant:
            if not _is_linear(layers[name]):
                raise AdapterError(
                    name, "expected a torch.nn.Linear or transformers' Conv1D", type(layers[name]).__name__
                )
        found += meant
    return list(dict.fromkeys(found))


def _is_linear(layer: nn.Module) -> bool:
    """Tell whether this is a layer that can be adapted. Exact types: a subclass may never be called."""
    return type(layer) is nn.Linear or is_transposed(layer)


def is_transposed(layer: nn.Module) -> bool:
    """Tell whether this is the Conv1D of `transformers`, whose weight is (inputs, outputs)."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf") and getattr(layer, "weight", None) is not None


def sizes_of(layer: nn.Module) -> tuple[int, int]:
    """Return inputs and outputs of a target."""
    weight = layer.get_parameter("weight") if "weight" in layer._parameters else layer.get_buffer("weight")
    n_rows, n_columns = weight.shape
    return (int(n_rows), int(n_columns)) if is_transposed(layer) else (int(n_columns), int(n_rows))


def orthonormal_rows(rank: int, n_inputs: int, *, seed: int, name: str) -> Tensor:
    """Draw A, (rank, n_inputs) float32, by the factorisation of a Gaussian matrix.

    Public, hence not cryptographic. Its last bits differ from machine to machine: one machine makes it for all.
    Raises: AdapterError for more rows than inputs.
    """
    if rank > n_inputs:
        raise AdapterError(name, f"expected a rank of at most its {n_inputs} inputs", str(rank))
    drawn = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8]) >> 1
    gaussian = torch.randn((n_inputs, rank), generator=torch.Generator().manual_seed(drawn), dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    rows: Tensor = (q * r.diagonal().sign()).T.float().contiguous()
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """The adapted part of a model, which may be all of it."""

    prefix: str
    """Begins its names within the model, with the dot; empty for all of it."""
    root: nn.Module
    shared: Adaptation

    def layers(self) -> Iterator[AdaptedLayer]:
        """Return the adapters in the order of the flat vector."""
        return (layer for layer in self.root.modules() if isinstance(layer, AdaptedLayer))


def adapted(model: nn.Module) -> Adapted | None:
    """Return the part of the model that `lora` made; None where there is none. Raises AdapterError for several."""
    found = [
        Adapted(f"{name}." if name else "", part, shared)
        for name, part in model.named_modules()
        if isinstance(shared := getattr(part, _MARK, None), Adaptation)
    ]
    if len(found) > 1:
        raise AdapterError("model", "expected one adapted part", f"{len(found)}")
    return found[0] if found else None


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model. That of an adapted one has parameters of its own and shares the base and A.

    Whoever converts a copy gets new tensors; none is changed in place.
    """
    shared = {} if adapted(model) is None else {id(constant): constant for constant in model.buffers()}
    return copy.deepcopy(model, shared)


def require_constant_base(model: nn.Module) -> None:
    """Refuse a model with adapters in which anything but their B is trained. Raises AdapterError."""
    if adapted(model) is None:
        return
    own = {id(layer.B.weight) for layer in model.modules() if isinstance(layer, AdaptedLayer)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in own:
            raise AdapterError(name, "expected a constant: beside adapters the base does not move", "a parameter")


def require_trained(model: nn.Module, gradients: Tensor) -> None:
    """Refuse adapters whose gradient is zero for every made-up record.

    gradients: of n records, (n, d), at parameters where nothing vanishes by chance. Raises AdapterError.
    """
    found = adapted(model)
    start = 0
    for layer in () if found is None else found.layers():
        stop = start + layer.B.weight.numel()
        if not gradients[:, start:stop].any():
            raise AdapterError(layer.name, "expected an adapter that trains", "a gradient of zero for every input")
        start = stop


def train_first(model: nn.Module, n_columns: int) -> None:
    """Train the first columns of every B alone, in place. Raises AdapterError."""
    found = adapted(model)
    if found is None:
        raise AdapterError("client.adapter_rank", "expected a model with adapters", "one without")
    if not 1 <= n_columns <= found.shared.rank:
        expected = f"expected at least 1, at most the task's {found.shared.rank}"
        raise AdapterError("client.adapter_rank", expected, str(n_columns))
    for layer in found.layers():
        layer.B.n_trained = n_columns
