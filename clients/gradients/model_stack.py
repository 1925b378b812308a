"""Gradients at several models at once: what clients need that have trained for a step or more by themselves.

After its first local step every client has a model of its own. A stack runs these models together, one set of
parameters each (`precad.clients.gradients.stacked_layers`), in tiles that fit the memory budget. `ModelByModel` is the
loop, which tests compare with. Where a step gives clients different numbers of records, shorter ones are filled up
with copies that count for nothing. The shape of a pass follows the clients of a step, so in float32 one client may
change how another's gradients are rounded. Simulations alone use stacks, and state that their guarantee then holds in
real arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.errors import DimensionError, LayerRowsError, NonFiniteGradientError
from precad.clients.gradients.engine import RecordEngine, deterministic
from precad.clients.gradients.layers import LayerGradients
from precad.clients.gradients.one_pass import recorded_pass
from precad.clients.gradients.probe import EXHAUSTED, PROBE_TOLERANCE, probe_labels
from precad.clients.gradients.record_clipping import RecordClip, clipped_sums
from precad.clients.gradients.record_paths import PASSES
from precad.clients.gradients.stacked_layers import load, stacked
from precad.clients.gradients.tiles import Piece
from precad.clients.models.precision import DOUBLE
from precad.clients.models.raised import RAISED
from precad.clients.own_code import Unspoken
from precad.clients.records.records import Records, model_inputs

Models = NDArray[np.float64]
"""(n, d), one client's parameters a row."""
_COPIES: Final = 6
"""Memory of a model in a pass: its parameters and their gradient in float32 and float64, in units of 4 bytes."""


class OwnModels(Protocol):
    """Sums of gradients over records of clients, each at the client's own parameters."""

    def gradient_sums(self, models: Models, clients: Sequence[Records]) -> Models:
        """Return sum_s g_s over each client's records, clipped by nothing; (n, d). See `RecordEngine.gradient_sum`.

        Raises: DimensionError, NonFiniteGradientError.
        """

    def clipped_sums(self, models: Models, clients: Sequence[Records], clip: RecordClip) -> Models:
        """Return sum_s g_s * min(1, R / ||g_s||_2) over each client's records; (n, d). See `RecordEngine.clipped_sums`.

        Raises: DimensionError; NonFiniteGradientError where R is infinite.
        """


def own_models(engine: RecordEngine, *, one_by_one: bool = False) -> OwnModels:
    """Return the faster way for the engine's model and device; with `one_by_one` the loop, whose bits are those of a
    process per client.

    A stack, but for convolutions on a CPU, which are faster model by model: measured by `precad bench local-training`,
    decided by rule, so that a run repeats. Models that a stack cannot run take the loop.
    """
    layers = engine.model_copy().modules()
    is_slow = engine.device.type == "cpu" and any(isinstance(layer, nn.Conv2d) for layer in layers)
    return ModelByModel(engine) if one_by_one or is_slow or not can_stack(engine) else ModelStack(engine)


def can_stack(engine: RecordEngine) -> bool:
    """Tell whether a stack of two made-up models gives in float64 what the loop gives, on one record and on several."""
    if engine.path not in PASSES or engine.tried_in is not DOUBLE[0]:  # float64 is not what its code makes
        return False
    twin = RecordEngine(
        engine.model_copy(),
        engine.probe_records[0],
        loss=engine.loss,
        label=engine.label,
        device="cpu",
        dtype=torch.float64,
    )
    if twin.path not in PASSES:
        return False
    models = 0.1 * np.random.default_rng(0).standard_normal((2, twin.dim))
    several = Records(engine.probe_records.numpy(), probe_labels(engine.label, len(engine.probe_records)).numpy())
    records = [several.take(np.array([1])), several]
    try:
        expected = ModelByModel(twin).gradient_sums(models, records)
        got = ModelStack(twin).stacked_gradient_sums(models, records)
    except RAISED:
        return False  # the model asks something of its layers that only layers have
    return bool(np.linalg.norm(got - expected) <= PROBE_TOLERANCE * np.linalg.norm(expected))


class ModelByModel:
    """One client after the other."""

    def __init__(self, engine: RecordEngine) -> None:
        self._engine = engine

    def gradient_sums(self, models: Models, clients: Sequence[Records]) -> Models:
        """See OwnModels."""
        sums = [self._engine.gradient_sum(model, own) for model, own in zip(models, clients, strict=True)]
        return np.stack(sums) if sums else np.zeros_like(models)

    def clipped_sums(self, models: Models, clients: Sequence[Records], clip: RecordClip) -> Models:
        """See OwnModels."""
        sums = [self._engine.clipped_sums(model, [own], clip)[0] for model, own in zip(models, clients, strict=True)]
        return np.stack(sums) if sums else np.zeros_like(models)


class ModelStack:
    """All clients of a tile in one pass. Not for two threads at once."""

    def __init__(self, engine: RecordEngine) -> None:
        """Raises KeyError for a model with a layer that cannot be stacked."""
        self._engine = engine
        model, self._layers = stacked(engine.model_copy())
        self._model = model.to(engine.device, engine.dtype)

    def gradient_sums(self, models: Models, clients: Sequence[Records]) -> Models:
        """See OwnModels. A step whose records do not all take the same way through the model is for the loop."""
        try:
            with Unspoken(self._engine.spoken, EXHAUSTED):
                return self.stacked_gradient_sums(models, clients)
        except LayerRowsError:
            return ModelByModel(self._engine).gradient_sums(models, clients)

    def clipped_sums(self, models: Models, clients: Sequence[Records], clip: RecordClip) -> Models:
        """See OwnModels."""
        try:
            with Unspoken(self._engine.spoken, EXHAUSTED):
                return self._stacked_clipped_sums(models, clients, clip)
        except LayerRowsError:
            return ModelByModel(self._engine).clipped_sums(models, clients, clip)

    def stacked_gradient_sums(self, models: Models, clients: Sequence[Records]) -> Models:
        """Return what `gradient_sums` does, but never by the loop. Raises: also LayerRowsError."""
        sums = self._zeros(models, clients)
        for tile in self._tiles([len(own) for own in clients]):
            at = self._load(models, tile).requires_grad_()
            features, labels = self._batch(tile, clients)
            load(self._layers, at, n_rows=len(labels))
            with torch.enable_grad(), deterministic():
                losses = self._engine.loss.each(self._model, features, labels)
                (gradients,) = torch.autograd.grad((losses * self._counts(tile)).sum(), at)
            found = gradients.double().cpu().numpy()
            if not np.isfinite(found).all():
                n_bad = sum(len(row) for row, one in zip(tile, found, strict=True) if not np.isfinite(one).all())
                raise NonFiniteGradientError(n_bad=n_bad, n_records=sum(map(len, tile)))
            sums[[row.client for row in tile]] += found
        return sums

    def _stacked_clipped_sums(self, models: Models, clients: Sequence[Records], clip: RecordClip) -> Models:
        sums = self._zeros(models, clients)
        for tile in self._tiles([len(own) for own in clients]):
            features, labels = self._batch(tile, clients)
            load(self._layers, self._load(models, tile), n_rows=len(labels))
            gradients = self._gradients(features, labels)
            width = max(map(len, tile))
            segments = [slice(i * width, i * width + len(row)) for i, row in enumerate(tile)]  # without the copies
            sums[[row.client for row in tile]] += clipped_sums(gradients, clip, segments).cpu().numpy()
        return sums

    def _zeros(self, models: Models, clients: Sequence[Records]) -> Models:
        if models.shape != (len(clients), self._engine.dim):
            raise DimensionError(expected=self._engine.dim, found=models.shape[1:])
        return np.zeros_like(models)

    def _gradients(self, features: Tensor, labels: Tensor) -> list[LayerGradients]:
        layers = [stacked_layer.layer for stacked_layer in self._layers]
        with deterministic():
            return recorded_pass(self._model, self._layers, layers, features, labels, self._engine.loss)

    def _tiles(self, sizes: Sequence[int]) -> Iterator[list[Piece]]:
        """Rows of about the same length, the longest first, as many as fit; at least half of a tile are records.

        A client's records are cut where they alone fill a tile, so no client is twice in one.
        """
        engine = self._engine
        of_model = 4 * _COPIES * engine.dim
        longest = max(1, (engine.memory_bytes - of_model) // engine.bytes_per_record)
        rows = [
            Piece(client, start, min(start + longest, size))
            for client, size in enumerate(sizes)
            for start in range(0, size, longest)
        ]
        rows.sort(key=lambda row: (-len(row), row.client))
        tile: list[Piece] = []
        for row in rows:
            width = len(tile[0]) if tile else len(row)
            is_full = (len(tile) + 1) * (width * engine.bytes_per_record + of_model) > engine.memory_bytes
            if tile and (is_full or 2 * len(row) < width):
                yield tile
                tile = []
            tile.append(row)
        if tile:
            yield tile

    def _load(self, models: Models, tile: list[Piece]) -> Tensor:
        return torch.from_numpy(models[[row.client for row in tile]]).to(self._engine.device, self._engine.dtype)

    def _batch(self, tile: list[Piece], clients: Sequence[Records]) -> tuple[Tensor, Tensor]:
        """Return (R * B, ..) features as the model reads them, and labels. Short rows repeat their first record."""
        width, device = max(map(len, tile)), self._engine.device
        features, labels = [], []
        for row in tile:
            own = clients[row.client]
            places = np.arange(row.start, row.start + width)
            places[len(row) :] = row.start
            features.append(own.features[places])
            labels.append(own.labels[places])
        inputs = model_inputs(torch.from_numpy(np.concatenate(features)).to(device), self._engine.dtype)
        return inputs, torch.from_numpy(np.concatenate(labels)).to(device)

    def _counts(self, tile: list[Piece]) -> Tensor:
        """1 for a record, 0 for a copy; (R * B,)."""
        width = max(map(len, tile))
        counts = torch.zeros((len(tile), width), dtype=self._engine.dtype)
        for i, row in enumerate(tile):
            counts[i, : len(row)] = 1
        return counts.flatten().to(self._engine.device)
