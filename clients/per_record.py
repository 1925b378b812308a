"""Per-record gradients of many clients in one pass: clipped record by record, summed client by client.

Clients of a round share the model, so the records of all of them form one batch. The batch is cut into tiles that fit a
memory budget; a tile may hold the end of one client and the beginning of the next.

    one pass      forward and backward once, layers by `clients.layer_gradients`
    vmap          torch.func, for models with layers that have no rule
    one by one    a loop over records, for what torch.func cannot batch

Which one a model takes is decided when the engine is made, by comparing with the loop on two records in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clients.datasets.records import Records, channels_last, example_of, joined, model_inputs
from clients.errors import (
    ArgumentError,
    ModelInputError,
    NonFiniteGradientError,
    RecordMixingLayerError,
    UnknownNameError,
)
from clients.layer_gradients import LayerGradients, Rows, Segments, handles, owners, require_layer_sizes
from clients.models import parameter_count, unflatten
from clients.one_pass import Tape, one_pass
from clients.record_clipping import RecordClip, clipped_sums

_CPU_MEMORY_BYTES, _CUDA_MEMORY_BYTES = 32 * 2**20, 2 * 2**30
"""Of a tile, unless told otherwise. On a CPU a tile that stays near the caches is also the fastest."""
_IMAGE_AXES: Final = 4
_PROBE_TOLERANCE: Final = 1e-9
"""Relative, in float64; two correct ways differ by rounding, below 1e-12."""


class Path(StrEnum):
    """How an engine takes gradients of single records."""

    ONE_PASS = "one-pass"  # noqa: S105 - no password
    VMAP = "vmap"
    ONE_BY_ONE = "one-by-one"


class RecordEngine:
    """Clipped gradient sums of one model. Keeps a copy of it; not for two threads at once."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        device: str = "auto",
        dtype: torch.dtype = torch.float32,
        memory_bytes: int | None = None,
    ) -> None:
        """`example` is one record's features, without the batch axis; its values do not matter. A tile takes as many
        records as fit in `memory_bytes` (activations, patches and formed gradients), at least one.

        Raises: RecordMixingLayerError, ModelInputError, ArgumentError, UnknownNameError.
        """
        if memory_bytes is not None and not memory_bytes > 0:
            raise ArgumentError(f"memory_bytes must be > 0, got {memory_bytes}")
        refuse_record_mixing(model)
        self.dim = parameter_count(model)
        self.device, self.dtype = resolve_device(device), dtype
        self._template, self.probe_records = _quiet_copy(model), _probe_records(example)
        self.path, self.bytes_per_record = _probe(self._template, self.probe_records)
        self._model = copy.deepcopy(self._template).to(self.device, dtype)
        default = _CUDA_MEMORY_BYTES if self.device.type == "cuda" else _CPU_MEMORY_BYTES
        self.memory_bytes = memory_bytes or default
        self._n_tile = max(1, self.memory_bytes // self.bytes_per_record)
        self._is_image = example.dim() == 3
        if self._is_image and self.device.type == "cpu":  # pooling and patches are several times faster
            for parameter in self._model.parameters():
                if parameter.dim() == _IMAGE_AXES:
                    parameter.data = channels_last(parameter.data)

    def require_layer_sizes(self, setting: str) -> list[int]:
        """`clients.layer_gradients.require_layer_sizes` of its model."""
        return require_layer_sizes(self._model, setting)

    def model_copy(self) -> nn.Module:
        """A new copy of the model, on the CPU in float32, that draws nothing and changes nothing in place."""
        return copy.deepcopy(self._template)

    def clipped_sums(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], clients: Sequence[Records], clip: RecordClip
    ) -> NDArray[np.float64]:
        """For each client sum_s g_s * min(1, R / ||g_s||_2) over its records; (len(clients), d).

        g_s is the cross-entropy gradient of record s at `parameters` (d,). Norms, factors and sums are in float64; g_s
        has the precision of the engine. A g_s that is not finite adds zero. The same arguments on the same device give
        the same bits.
        Raises: DimensionError; NonFiniteGradientError where R is infinite.
        Source: PRECAD, Algorithm 2, lines 2-6, without the sign.
        """
        self._load(parameters)
        sums = np.zeros((len(clients), self.dim))
        sizes = [len(records) for records in clients]
        if sum(sizes) == 0:
            return sums
        everything = joined(clients)
        features, labels = torch.from_numpy(everything.features), torch.from_numpy(everything.labels)
        for tile, part in _tiles(sizes, self._n_tile):
            found = clipped_sums(self._gradients(features[tile], labels[tile]), clip, [own for _, own in part])
            first, last = part[0][0], part[-1][0]
            owners_of_tile = slice(first, last + 1) if last - first < len(part) else [client for client, _ in part]
            sums[owners_of_tile] += found.cpu().numpy()
        return sums

    def gradient_sum(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], records: Records
    ) -> NDArray[np.float64]:
        """sum_s g_s over the records, (d,), clipped by nothing: one ordinary backward pass a tile, half the time of
        `clipped_sums` with an infinite R. Raises: DimensionError, NonFiniteGradientError, which counts all records."""
        self._load(parameters)
        weights = {name: weight.detach().requires_grad_() for name, weight in self._model.named_parameters()}
        total = np.zeros(self.dim)
        for tile, _ in _tiles([len(records)], self._n_tile):
            features, labels = torch.from_numpy(records.features[tile]), torch.from_numpy(records.labels[tile])
            with torch.enable_grad(), deterministic():
                logits = functional_call(self._model, weights, (self._inputs(features),))
                loss = nn.functional.cross_entropy(logits, labels.to(self.device), reduction="sum")
                parts = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            total += torch.cat([part.reshape(-1) for part in parts]).double().cpu().numpy()
        if not np.isfinite(total).all():
            raise NonFiniteGradientError(n_bad=len(records), n_records=len(records))
        return total

    def _load(self, parameters: NDArray[np.float32] | NDArray[np.float64]) -> None:
        with torch.no_grad():
            weights = unflatten(torch.tensor(parameters), self._model)
            for name, parameter in self._model.named_parameters():
                parameter.copy_(weights[name])

    def _gradients(self, features: Tensor, labels: Tensor) -> list[LayerGradients]:
        """Of the records of one tile, layer by layer."""
        take = {Path.ONE_PASS: one_pass, Path.VMAP: _by_vmap, Path.ONE_BY_ONE: _one_by_one}[self.path]
        with deterministic():
            return take(self._model, self._inputs(features), labels.to(self.device))

    def _inputs(self, features: Tensor) -> Tensor:
        """As the model reads them, on its device."""
        features = model_inputs(features.to(self.device), next(self._model.parameters()).dtype)
        return channels_last(features) if self._is_image and self.device.type == "cpu" else features


def deterministic() -> AbstractContextManager[None]:
    """The same bits from the same numbers on a GPU."""
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    return cast("AbstractContextManager[None]", flags)


def clipped_gradient_sum(
    parameters: NDArray[np.float32] | NDArray[np.float64],
    records: Records,
    *,
    model: nn.Module,
    record_clip_norm: float,
    device: str = "auto",
    memory_bytes: int | None = None,
) -> NDArray[np.float64]:
    """The same for one client, (d,), in the precision of `parameters`; makes an engine for this one call.

    Adding or removing one record moves the sum by at most R, in real arithmetic; see `RecordEngine.clipped_sums`.
    Raises: ArgumentError, DimensionError, RecordMixingLayerError.
    """
    if not record_clip_norm < math.inf:
        raise ArgumentError(f"record_clip_norm must be positive and finite, got {record_clip_norm}")
    clip, dtype = RecordClip(record_clip_norm), torch.tensor(parameters[:0]).dtype
    engine = RecordEngine(model, example_of(records), device=device, dtype=dtype, memory_bytes=memory_bytes)
    sums: NDArray[np.float64] = engine.clipped_sums(parameters, [records], clip)[0]
    return sums


def _tiles(sizes: Sequence[int], n_tile: int) -> Iterator[tuple[slice, list[tuple[int, slice]]]]:
    """Cuts the records into tiles; for each, who has records in it and where within the tile."""
    ends = np.cumsum(sizes)
    starts = ends - np.asarray(sizes)
    for start in range(0, int(ends[-1]), n_tile):
        stop = min(start + n_tile, int(ends[-1]))
        inside = np.flatnonzero((starts < stop) & (ends > start) & (ends > starts))
        yield (
            slice(start, stop),
            [(int(i), slice(max(int(starts[i]), start) - start, min(int(ends[i]), stop) - start)) for i in inside],
        )


# -- three ways to the gradients of single records --------------------------------------------------------------------


def _by_vmap(model: nn.Module, features: Tensor, labels: Tensor) -> list[LayerGradients]:
    """torch.func on single records."""

    def loss(at: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, at, (one.unsqueeze(0),)), label.unsqueeze(0))

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    rows: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(weights, features, labels)
    return _rows_by_layer(model, rows)


def _one_by_one(model: nn.Module, features: Tensor, labels: Tensor) -> list[LayerGradients]:
    """One forward and backward pass per record: slow, and right for whatever autograd can differentiate."""
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    rows: dict[str, list[Tensor]] = {name: [] for name in weights}
    with torch.enable_grad():
        for one, label in zip(features, labels, strict=True):
            loss = nn.functional.cross_entropy(functional_call(model, weights, (one.unsqueeze(0),)), label.unsqueeze(0))
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for (name, weight), value in zip(weights.items(), found, strict=True):
                rows[name].append(torch.zeros_like(weight) if value is None else value)
    return _rows_by_layer(model, {name: torch.stack(values) for name, values in rows.items()})


def _rows_by_layer(model: nn.Module, rows: dict[str, Tensor]) -> list[LayerGradients]:
    """Rows of all parameters, as those of each layer. A parameter that two layers share belongs to the first."""
    layers: list[LayerGradients] = []
    for name, layer in owners(model):
        names = [f"{name}.{own}" if name else own for own, _ in layer.named_parameters(recurse=False)]
        blocks = [rows[full].flatten(start_dim=1).double() for full in names if full in rows]
        if blocks:
            layers.append(Rows(tuple(blocks), (None,) * len(blocks)))
    return layers


# -- before the first record ------------------------------------------------------------------------------------------


def _quiet_copy(model: nn.Module) -> nn.Module:
    """A copy that changes nothing in place, draws nothing (dropout is off), and whose parameters want no gradient."""
    quiet = copy.deepcopy(model).cpu().eval().requires_grad_(requires_grad=False)
    for layer in quiet.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]  # a later layer would overwrite what an earlier one wrote
    return quiet


def _probe(model: nn.Module, features: Tensor) -> tuple[Path, int]:
    """The fastest right path for this model, and bytes of memory that a record takes on it.

    Raises: RecordMixingLayerError, ModelInputError.
    """
    twin = copy.deepcopy(model).double()
    labels = torch.tensor([0, 1])
    _require_separate_records(twin, features)
    expected = _flat(_one_by_one(twin, features, labels))
    one_pass_bytes = 0
    for path, take in ((Path.ONE_PASS, one_pass), (Path.VMAP, _by_vmap)):
        if path is Path.ONE_PASS and not _has_rules(twin):
            continue
        try:
            got = _flat(take(twin, features, labels))
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue  # this way is not for this model; the loop is
        if got.shape == expected.shape and bool(
            torch.linalg.vector_norm(got - expected) <= _PROBE_TOLERANCE * (1 + torch.linalg.vector_norm(expected))
        ):
            if path is Path.ONE_PASS:
                one_pass_bytes = _one_pass_bytes(twin, features)
            return path, one_pass_bytes or 20 * parameter_count(model)
    return Path.ONE_BY_ONE, 20 * parameter_count(model)


def _has_rules(model: nn.Module) -> bool:
    layers = [layer for _, layer in owners(model)]
    n_owned = sum(len(list(layer.parameters(recurse=False))) for layer in layers)
    return all(handles(layer) for layer in layers) and n_owned == len(list(model.parameters()))  # none is shared


def _probe_records(example: Tensor) -> Tensor:
    """Two different records of the example's shape: noise, or tokens that every vocabulary has."""
    if not example.is_floating_point():
        return torch.stack([torch.zeros_like(example), torch.arange(example.numel()).view_as(example) % 2])
    generator = torch.Generator().manual_seed(0)
    return torch.rand((2, *example.shape), generator=generator, dtype=torch.float64)


def _require_separate_records(model: nn.Module, features: Tensor) -> None:
    """A record's logits are the same whatever the other record is. Raises ModelInputError, RecordMixingLayerError."""
    try:
        with torch.no_grad():
            both, alone = model(features), model(features[:1])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ModelInputError(tuple(features.shape[1:]), str(error).splitlines()[0]) from None
    if not isinstance(both, Tensor) or both.dim() != 2 or both.shape[0] != 2:
        found = tuple(both.shape) if isinstance(both, Tensor) else type(both).__name__
        raise ModelInputError(tuple(features.shape[1:]), f"two records must give logits (2, classes), got {found}")
    if not torch.allclose(both[:1], alone, rtol=1e-9, atol=1e-9):
        raise RecordMixingLayerError("model", type(model).__name__)


def _flat(gradients: Sequence[LayerGradients]) -> Tensor:
    """All rows, (2, d), through the sums that training uses."""
    n = len(gradients[0].squared_norms())
    factors = torch.ones(n, dtype=torch.float64)
    segments: Segments = [slice(i, i + 1) for i in range(n)]
    return torch.cat([layer.weighted_sums(factors, segments) for layer in gradients], dim=1)


def _one_pass_bytes(model: nn.Module, features: Tensor) -> int:
    """What one record takes: activations twice (forward, backward), patches, rows in the working type and float64."""
    tape = Tape([layer for _, layer in owners(model)])
    with tape.recording(), torch.enable_grad():
        model(features)
    n_entries = 0
    for layer, reads, outputs in zip(tape.layers, tape.reads, tape.outputs, strict=True):
        wrote = sum(output[0].numel() for output in outputs)
        n_entries += 4 * (sum(read[0].numel() for read in reads) + wrote)
        if isinstance(layer, nn.Conv2d):
            n_entries += wrote // layer.out_channels * layer.weight[0].numel()
        if not (isinstance(layer, nn.Linear) and len(reads) == 1 and reads[0].dim() == 2):
            n_entries += 3 * sum(parameter.numel() for parameter in layer.parameters(recurse=False))
    return 4 * n_entries


def refuse_record_mixing(model: nn.Module) -> None:
    """Raise RecordMixingLayerError, naming the layer, if `model` normalises over the batch or keeps running averages.

    With such a layer, one record changes the gradients of all others, and clipping bounds nobody's influence.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise RecordMixingLayerError(name or "model", type(layer).__name__)


def resolve_device(name: str) -> torch.device:
    """The device that configuration names: "cpu", "cuda", "cuda:N", or "auto", which is cuda where there is one.

    Raises: UnknownNameError; ArgumentError if CUDA is asked for and absent.
    """
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdecimal())):
        raise UnknownNameError("device", name, known=["auto", "cpu", "cuda", "cuda:N"])
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"device {name!r} was asked for, and PyTorch sees no CUDA device")
    if index and int(index) >= torch.cuda.device_count():
        raise ArgumentError(f"device {name!r} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return torch.device(name)
