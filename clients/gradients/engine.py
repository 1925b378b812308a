"""Per-record gradients of many clients in one pass: clipped record by record, summed client by client.

Clients of a round share the model, so the records of all of them are dealt to tiles
(`precad.clients.gradients.tiles`). Every pass is filled up to one length with padding that no sum counts. On a CPU
there are a few lengths, which give the same bits (`precad.clients.gradients.pass_lengths`). A record's gradient is then
the same bits beside whatever others. Without that its bound R holds in real arithmetic only
(docs/explanation/privacy.md).
`precad.clients.gradients.bit_exactness` tries this bit by bit for the model, the device and the number of threads.
Where it fails for both the tile and the longest pass, a pass takes one record. So does every pass of a loss of the
user's own: what raises on one record then takes no other record along.

The gradients of single records are taken by one of several paths (`precad.clients.gradients.record_paths`). The engine
chooses the model's path when it is made, by comparing with the loop over records (`precad.clients.gradients.probe`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.errors import (
    ArgumentError,
    ClientError,
    ModelRecordError,
    NonFiniteGradientError,
    StoppedError,
    UnknownNameError,
)
from precad.clients.gradients.bit_exactness import Kind, Take, is_as_in_tile, is_bit_exact
from precad.clients.gradients.layers import LayerGradients, require_layer_sizes
from precad.clients.gradients.narrow_pass import NarrowPasses
from precad.clients.gradients.pass_lengths import OF_ADAPTERS, OF_MODELS, PassLengths
from precad.clients.gradients.probe import EXHAUSTED, n_tokens_of, probe, probe_records, quiet_copy
from precad.clients.gradients.record_clipping import RecordClip, are_finite, clipped_sums
from precad.clients.gradients.record_paths import PASSES, Path, path_of, total_loss
from precad.clients.gradients.tiles import places
from precad.clients.models.adapters import adapted, copied
from precad.clients.models.losses import CROSS_ENTROPY, Loss
from precad.clients.models.networks import flatten, parameter_count, unflatten
from precad.clients.own_code import Unspoken
from precad.clients.records.records import (
    IMAGE_AXES,
    Records,
    channels_last,
    joined,
    model_inputs,
)

_CPU_MEMORY_BYTES, _CUDA_MEMORY_BYTES = 32 * 2**20, 2 * 2**30
"""Memory of a pass, unless told otherwise. On a CPU a pass that stays near the caches is also the fastest."""
_FEWEST: Final = 32
"""Records that a pass may have, unless a memory budget says less."""
_ON_AN_ACCELERATOR: Final = 1024
"""Records of every pass: one of few costs what a full one does."""
_TILE_SHARE: Final = 2
"""The longest pass of clipped records takes one part in so many of that memory: longer ones gain little."""
A_CLASS: Final = torch.zeros((), dtype=torch.int64)
"""A label that is a class."""


@dataclass(frozen=True, slots=True)
class Passes:
    """How records go through the model."""

    path: Path
    n_tile: int
    """Records of every pass, or of the one beside which other lengths are tried."""
    is_bit_exact: bool
    """Whether a record's gradient was the same bits in every arrangement that was tried."""


class RecordEngine:
    """Clipped gradient sums of one model. Keeps a copy of it; not for two threads at once."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        loss: Loss = CROSS_ENTROPY,
        label: Tensor = A_CLASS,
        device: str = "auto",
        dtype: torch.dtype = torch.float32,
        memory_bytes: int | None = None,
    ) -> None:
        """`example` and `label` are one record's, without the batch axis; their values do not matter. A pass takes at
        most as many records as fit in `memory_bytes` (activations, patches and formed gradients), at least one.

        Raises: RecordMixingLayerError, DropoutLayerError, UnsteadyModelError, ModelInputError, ArgumentError,
        UnknownNameError.
        """
        if memory_bytes is not None and not memory_bytes > 0:
            raise ArgumentError(f"memory_bytes: expected a number above 0, found {memory_bytes}")
        self.dim = parameter_count(model)
        self.device, self.dtype, self._example = resolve_device(device), dtype, example
        self.loss, self.label = loss, label
        self._template, self.probe_records = quiet_copy(model), probe_records(example)
        self._path, self.bytes_per_record, self.tried_in, self._shaken = probe(
            self._template, self.probe_records, label, loss
        )
        self._n_tokens = n_tokens_of(self._template, example)
        self._model = copied(self._template).to(self.device, dtype)
        self.memory_bytes = memory_bytes or (_CUDA_MEMORY_BYTES if self.device.type == "cuda" else _CPU_MEMORY_BYTES)
        self._n_fit = max(1, self.memory_bytes // self.bytes_per_record)
        self._is_image = example.dim() == 3
        if self._is_image and self.device.type == "cpu":  # pooling and patches are several times faster
            for parameter in self._model.parameters():
                if parameter.dim() == IMAGE_AXES:
                    parameter.data = channels_last(parameter.data)
        self._narrow = NarrowPasses(self._model)
        n_fit = max(_FEWEST if memory_bytes is None else 1, self._n_fit // _TILE_SHARE)
        self._variety = OF_MODELS if adapted(model) is None else OF_ADAPTERS
        self._n_tile, self._most = self._variety.within(n_fit)
        if self.device.type != "cpu":
            self._n_tile = self._most = min(_ON_AN_ACCELERATOR, n_fit)
        self._is_stopped = False
        self._tried: dict[int, Passes] = {}
        self._lengths: dict[int, PassLengths] = {}
        _ = self.passes

    def stop(self) -> None:
        """Take no gradient any more, from any thread: who asks for one, or waits for one, gets StoppedError soon."""
        self._is_stopped = True

    def _require_going_on(self) -> None:
        if self._is_stopped:
            raise StoppedError("the client was stopped by its operator")

    @property
    def passes(self) -> Passes:
        """Return the passes of this model for as many threads as PyTorch has now. They are tried at the first use."""
        n_threads = torch.get_num_threads()
        if n_threads not in self._tried:
            self._tried[n_threads] = self._try()
        return self._tried[n_threads]

    @property
    def path(self) -> Path:
        """Return how gradients of single records are taken."""
        return self.passes.path

    def _try(self) -> Passes:
        """The fastest way of which the bits of a record's gradient depend on nothing else. One record a pass is one by
        construction, where a device gives the same bits twice."""
        paths = PASSES if self._path is Path.NARROW_PASS else (self._path,)
        # where the tile does not do, all passes have the longest length if that one does
        ways = [(path, n_tile) for n_tile in (self._n_tile, self._most, 1) for path in paths]
        for path, n_tile in dict.fromkeys((*ways, (Path.ONE_BY_ONE, 1))):  # what failed is not tried again
            if n_tile > 1 and (path is Path.ONE_BY_ONE or not self.loss.takes_batches):
                continue

            if self._holds(path, functools.partial(is_bit_exact, n_tile=n_tile)):
                return Passes(path, n_tile, is_bit_exact=True)
        return Passes(Path.ONE_BY_ONE, 1, is_bit_exact=False)

    def _lengths_now(self) -> PassLengths:
        """Return the lengths of passes with as many threads as PyTorch has now."""
        n_threads, passes = torch.get_num_threads(), self.passes
        if n_threads not in self._lengths:
            most = self._most if passes.n_tile == self._n_tile else passes.n_tile
            self._lengths[n_threads] = PassLengths(passes.n_tile, most, self._is_as_in_tile, self._variety)
        return self._lengths[n_threads]

    def _is_as_in_tile(self, n_rows: int) -> bool:
        passes = self.passes
        return self._holds(passes.path, functools.partial(is_as_in_tile, n_rows=n_rows, n_tile=passes.n_tile))

    def _holds(self, path: Path, is_so: Callable[[Take, Kind], bool]) -> bool:
        """Tell whether passes are so at the shaken parameters, and at the first ones.

        At either a layer of ReLU may be dead, and hide how others are rounded. Adapters are tried once: most of their
        model is constant, and they begin at zero.
        """
        kind = Kind(self._example, self.label, self._n_tokens, n_numbers=self.bytes_per_record // 4)  # of 4 bytes
        first = () if self._variety is OF_ADAPTERS else (flatten(self._template),)
        for parameters in (self._shaken, *first):
            self._load(parameters)
            with self._taking(path) as take:
                if not is_so(take, kind):
                    return False
        return True

    def require_layer_sizes(self, setting: str) -> list[int]:
        """Return `precad.clients.gradients.layers.require_layer_sizes` of its model."""
        return require_layer_sizes(self._model, setting)

    def model_copy(self) -> nn.Module:
        """Return a new copy of the model, on the CPU in float32, that draws nothing and changes nothing in place."""
        return copied(self._template)

    def clipped_sums(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], clients: Sequence[Records], clip: RecordClip
    ) -> NDArray[np.float64]:
        """Return for each client sum_s g_s * min(1, R / ||g_s||_2) over its records; (len(clients), d).

        g_s is the gradient of the loss of record s at `parameters` (d,). Norms, factors and sums are in float64; g_s
        has the precision of the engine. A g_s that is not finite adds zero. So does, in passes of one record, a record
        on which the model or a loss of the user's own raises. The same arguments on the same device give the same bits.
        Where `passes.is_bit_exact` a client's sum is the same bits whoever else is there, and one record more moves the
        sum by at most R: docs/explanation/privacy.md.
        Raises: DimensionError; ModelRecordError; NonFiniteGradientError where R is infinite.
        Source: PRECAD, Algorithm 2, lines 2-6, without the sign.
        """
        passes = self.passes
        sums = np.zeros((len(clients), self.dim))
        sizes = [len(records) for records in clients]
        tiles = list(self._lengths_now().dealt(sizes))
        self._load(parameters)
        if sum(sizes) == 0:
            return sums
        everything, firsts = joined(clients), np.cumsum(sizes) - sizes
        with self._taking(passes.path) as take:
            for tile, n_rows in tiles:
                self._require_going_on()
                chosen = np.concatenate([np.arange(p.start, p.stop) + firsts[p.client] for p in tile])
                features, labels = _padded(everything, chosen, n_rows)
                try:
                    with Unspoken(self.spoken, EXHAUSTED):
                        gradients = take(features, labels)
                except ClientError:
                    # again record by record would be another pass for the others, and could move them
                    if passes.n_tile > 1 or math.isinf(clip.norm):
                        raise
                    continue  # one record a pass: it adds zero, like one whose gradient is not finite
                found = clipped_sums(gradients, clip, places(tile)).cpu().numpy()
                for piece, row in zip(tile, found, strict=True):
                    sums[piece.client] += row
        return sums

    def has_finite_gradient(self, parameters: NDArray[np.float32] | NDArray[np.float64], records: Records) -> bool:
        """Tell whether a record has a finite gradient at `parameters` (d,), by passes up to the first that has one.

        A pass of several records on which the model raises counts as one: the first round says what it raised.
        Raises: DimensionError.
        """
        n_tile = self.passes.n_tile  # to try passes loads other parameters
        self._load(parameters)
        for start in range(0, len(records), n_tile):
            try:
                if self._are_finite(records, start).any():
                    return True
            except ClientError:
                if n_tile > 1:
                    return True
        return False

    def finite_gradients(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], records: Records
    ) -> NDArray[np.bool_]:
        """Tell of each record whether its gradient at `parameters` (d,) is finite, (n,).

        Where the model raises on a pass, none of its records counts as such. Raises: DimensionError.
        """
        n_tile = self.passes.n_tile  # to try passes loads other parameters
        self._load(parameters)
        found = np.zeros(len(records), dtype=bool)
        for start in range(0, len(records), n_tile):
            with suppress(ClientError):
                found[start : start + n_tile] = self._are_finite(records, start)
        return found

    def _are_finite(self, records: Records, start: int) -> NDArray[np.bool_]:
        """Tell it of the records of one tile, in one pass. Raises ModelRecordError."""
        chosen = np.arange(start, min(start + self.passes.n_tile, len(records)))
        tile = _padded(records, chosen, self.passes.n_tile)
        with Unspoken(self.spoken, EXHAUSTED), self._taking(self.passes.path) as take:
            gradients = take(*tile)
        return are_finite(gradients)[: len(chosen)].cpu().numpy()

    def gradient_sum(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], records: Records
    ) -> NDArray[np.float64]:
        """Return sum_s g_s over the records, (d,), clipped by nothing: one ordinary backward pass a tile, half the time
        of `clipped_sums` with an infinite R.

        Raises: DimensionError; ModelRecordError; NonFiniteGradientError, which counts all records.
        """
        self._load(parameters)
        weights = {name: weight.detach().requires_grad_() for name, weight in self._model.named_parameters()}
        total = np.zeros(self.dim)
        for start in range(0, len(records), self._n_fit):
            self._require_going_on()
            tile = slice(start, start + self._n_fit)
            features, labels = torch.from_numpy(records.features[tile]), torch.from_numpy(records.labels[tile])
            with Unspoken(self.spoken, EXHAUSTED), torch.enable_grad(), deterministic():
                loss = total_loss(self._model, weights, self._inputs(features), labels.to(self.device), self.loss)
                parts = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            total += torch.cat([part.reshape(-1) for part in parts]).double().cpu().numpy()
        if not np.isfinite(total).all():
            raise NonFiniteGradientError(n_bad=len(records), n_records=len(records))
        return total

    def spoken(self, error: Exception) -> ModelRecordError:
        """Return our error in the place of one of the user's model or loss, whose text may hold values of a record."""
        return ModelRecordError(error, own_loss="" if self.loss.takes_batches else self.loss.name)

    def _load(self, parameters: NDArray[np.float32] | NDArray[np.float64]) -> None:
        self._require_going_on()
        with torch.no_grad():
            weights = unflatten(torch.tensor(parameters), self._model)
            for name, parameter in self._model.named_parameters():
                parameter.copy_(weights[name])

    @contextmanager
    def _taking(self, path: Path) -> Iterator[Callable[[Tensor, Tensor], list[LayerGradients]]]:
        """Yield what returns the gradients of one tile's records, layer by layer, at the parameters that are loaded."""
        with deterministic(), path_of(path, self._model, self._narrow) as take:
            yield lambda features, labels: take(self._inputs(features), labels.to(self.device), self.loss)

    def _inputs(self, features: Tensor) -> Tensor:
        """As the model reads them, on its device."""
        features = model_inputs(features.to(self.device), self.dtype)
        return channels_last(features) if self._is_image and self.device.type == "cpu" else features


def deterministic() -> AbstractContextManager[None]:
    """Make cuDNN give the same bits from the same numbers on a GPU, while it is entered."""
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    return cast("AbstractContextManager[None]", flags)


def _padded(records: Records, chosen: NDArray[np.int64], n_rows: int) -> tuple[Tensor, Tensor]:
    """Features and labels of the chosen records, and zeros up to the length of a pass.

    PyTorch's own memory begins at multiples of 64 bytes, as what passes were tried with did; NumPy's need not.
    """
    padded = []
    for values in (records.features, records.labels):
        given = torch.from_numpy(values[chosen])
        padded.append(given.new_zeros((n_rows, *given.shape[1:])))
        padded[-1][: len(chosen)] = given
    return padded[0], padded[1]


def resolve_device(name: str) -> torch.device:
    """Return the device that configuration names: "cpu", "cuda", "cuda:N", or "auto", which is cuda where there is one.

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
