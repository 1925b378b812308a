"""Per-record gradients of many clients in one pass: clipped record by record, summed client by client.

Clients of a round share the model, so the records of all of them form one batch. The batch is cut into tiles that fit a
memory budget; a tile may hold the end of one client and the beginning of the next.

The gradients of single records are taken by one of three paths (`clients.record_paths`); which one a model takes is
decided when the engine is made, by comparing with the loop over records (`clients.model_probe`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from clients.datasets.records import Records, channels_last, example_of, joined, model_inputs
from clients.errors import ArgumentError, NonFiniteGradientError, UnknownNameError
from clients.layer_gradients import LayerGradients, require_layer_sizes
from clients.model_probe import probe, probe_records, quiet_copy
from clients.models import parameter_count, unflatten
from clients.record_clipping import RecordClip, clipped_sums
from clients.record_paths import record_gradients

_CPU_MEMORY_BYTES, _CUDA_MEMORY_BYTES = 32 * 2**20, 2 * 2**30
"""Of a tile, unless told otherwise. On a CPU a tile that stays near the caches is also the fastest."""
_IMAGE_AXES: Final = 4


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

        Raises: RecordMixingLayerError, UnsteadyModelError, ModelInputError, ArgumentError, UnknownNameError.
        """
        if memory_bytes is not None and not memory_bytes > 0:
            raise ArgumentError(f"memory_bytes must be > 0, got {memory_bytes}")
        self.dim = parameter_count(model)
        self.device, self.dtype = resolve_device(device), dtype
        self._template, self.probe_records = quiet_copy(model), probe_records(example)
        self.path, self.bytes_per_record = probe(self._template, self.probe_records)
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
        with deterministic():
            return record_gradients(self.path, self._model, self._inputs(features), labels.to(self.device))

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
