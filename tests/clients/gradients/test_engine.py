"""Clipped per-record gradients against a loop over single records with plain autograd."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from precad.clients import records as datasets
from precad.clients.errors import (
    ArgumentError,
    DimensionError,
    ModelInputError,
    NonFiniteGradientError,
    RecordMixingLayerError,
    UnknownNameError,
)
from precad.clients.gradients.engine import RecordEngine, resolve_device
from precad.clients.gradients.layers import Rows
from precad.clients.gradients.probe import refuse_record_mixing
from precad.clients.gradients.record_clipping import Clipping, RecordClip, clip_factors
from precad.clients.gradients.record_paths import Path
from precad.clients.models import networks
from precad.clients.records import example_of
from tests.harness.gradient_sums import clipped_gradient_sum
from tests.harness.models import dimension_of

N_RECORDS = 13


def some_records(name, n=N_RECORDS):
    return datasets.digits(side=networks.image_side(name)).train.take(np.arange(n))


def slow_gradients(model, records):
    """(gradient, norm) of each record: one backward pass and one exact sum of squares at a time."""
    found = []
    for image, label in zip(records.features, records.labels, strict=True):
        model.zero_grad()
        parameters = list(model.parameters())
        logits = model(torch.from_numpy(image[None]).to(parameters[0].dtype))
        nn.functional.cross_entropy(logits, torch.tensor([label])).backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in parameters]).astype(np.float64)
        found.append((gradient, math.sqrt(math.fsum((gradient * gradient).tolist()))))
    return found


@pytest.fixture(scope="module")
def gradients_of():
    """`slow_gradients` of some records by a model from seed 5 in a working precision; each is computed once."""
    return cache(
        lambda name, dtype: slow_gradients(
            networks.build(name, seed=5).to(torch.from_numpy(np.zeros(1, dtype)).dtype), some_records(name)
        )
    )


def slow_clipped_sum(gradients, bound):
    """Algorithm 2, lines 2 to 6, literally."""
    return sum(gradient * min(1.0, bound / norm) if norm > 0 else gradient for gradient, norm in gradients)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-10)])
@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_equals_the_loop_over_single_records(gradients_of, name, dtype, tolerance, factor):
    """All records clipped, about half of them, none: relative to the norm of the sum, within the working precision."""
    parameters = networks.initial_parameters(name, seed=5).astype(dtype)
    gradients = gradients_of(name, dtype)
    bound = factor * float(np.median([norm for _, norm in gradients]))
    fast = clipped_gradient_sum(
        parameters, some_records(name), model=networks.build(name), record_clip_norm=bound, device="cpu"
    )
    slow = slow_clipped_sum(gradients, bound)
    assert fast.dtype == np.float64
    assert fast.shape == slow.shape
    assert np.linalg.norm(fast - slow) <= tolerance * np.linalg.norm(slow)


@pytest.mark.parametrize("memory", [None, 1])
def test_the_unclipped_sum_is_the_loop_s(memory):
    """In one tile, and in one of each record; of none it is zero, and what is not finite is refused."""
    model, records = networks.build("cnn", seed=5), some_records("cnn")
    engine = RecordEngine(model, torch.zeros(1, 28, 28), device="cpu", memory_bytes=memory)
    slow = slow_clipped_sum(slow_gradients(model, records), math.inf)
    found = engine.gradient_sum(networks.flatten(model), records)
    assert np.linalg.norm(found - slow) <= 1e-6 * np.linalg.norm(slow)
    assert not engine.gradient_sum(networks.flatten(model), records.take(np.arange(0))).any()
    with pytest.raises(NonFiniteGradientError):
        engine.gradient_sum(np.full(engine.dim, np.nan, dtype=np.float32), records)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu():
    """Twin on the GPU, in float64, where TF32 plays no part."""
    parameters = networks.initial_parameters("cnn", seed=5).astype(np.float64)
    on_cpu, on_cuda = (
        clipped_gradient_sum(
            parameters, some_records("cnn"), model=networks.build("cnn"), record_clip_norm=1.0, device=device
        )
        for device in ("cpu", "cuda")
    )
    assert np.linalg.norm(on_cuda - on_cpu) <= 1e-10 * np.linalg.norm(on_cpu)


@pytest.mark.parametrize("memory_bytes", [1, 100_000, 2**30])
def test_tiles_change_memory_and_not_the_sum(memory_bytes):
    """A budget too small for one record still takes one at a time."""
    parameters = networks.initial_parameters("mlp", seed=5).astype(np.float64)
    whole, tiled = (
        clipped_gradient_sum(
            parameters,
            some_records("mlp"),
            model=networks.build("mlp"),
            record_clip_norm=1.0,
            device="cpu",
            memory_bytes=memory,
        )
        for memory in (None, memory_bytes)
    )
    np.testing.assert_allclose(tiled, whole, rtol=0, atol=1e-13 * N_RECORDS)


def test_one_record_moves_the_sum_by_at_most_the_bound():
    """Add/remove neighbours; float32 gradients, so up to 1e-6 relative."""
    parameters, records, model = networks.initial_parameters("mlp", seed=5), some_records("mlp"), networks.build("mlp")
    whole = clipped_gradient_sum(parameters, records, model=model, record_clip_norm=0.5, device="cpu")
    for left_out in range(N_RECORDS):
        neighbour = records.take(np.delete(np.arange(N_RECORDS), left_out))
        reduced = clipped_gradient_sum(parameters, neighbour, model=model, record_clip_norm=0.5, device="cpu")
        assert np.linalg.norm(whole - reduced) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_no_records_give_zeros(name):
    total = clipped_gradient_sum(
        networks.initial_parameters(name, seed=0),
        some_records(name, 0),
        model=networks.build(name),
        record_clip_norm=1.0,
    )
    assert total.dtype == np.float64
    assert_array_equal(total, np.zeros(dimension_of(name)))


def test_clip_factors_at_the_edges():
    """A row of zeros stays, a short row stays, the bound itself stays, a long row shrinks to the bound."""
    rows = torch.tensor([[0.0, 0.0], [0.3, 0.4], [0.6, 0.8], [30.0, 40.0]], dtype=torch.float64)
    (factors,) = clip_factors(rows.square().sum(dim=1)[None], RecordClip(1.0))
    np.testing.assert_allclose(factors.numpy(), [1.0, 1.0, 1.0, 0.02], rtol=1e-15)


def test_clip_factors_of_layers():
    """Flat: one factor from all layers. Per layer: each against R / sqrt(2)."""
    layers = torch.tensor([[3.0, 0.1]] * 2, dtype=torch.float64).square()
    flat = clip_factors(layers, RecordClip(1.0))
    per_layer = clip_factors(layers, RecordClip(1.0, Clipping.PER_LAYER))
    np.testing.assert_allclose(torch.stack(flat).numpy(), [[1 / (3 * math.sqrt(2)), 1.0]] * 2, rtol=1e-15)
    np.testing.assert_allclose(torch.stack(per_layer).numpy(), [[1 / (3 * math.sqrt(2)), 1.0]] * 2, rtol=1e-15)
    short = layers * torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    np.testing.assert_allclose(clip_factors(short, RecordClip(1.0))[0].numpy(), [1 / 3, 1.0], rtol=1e-15)
    one_by_one = clip_factors(short, RecordClip(1.0, Clipping.PER_LAYER))
    np.testing.assert_allclose(one_by_one[0].numpy(), [1 / (3 * math.sqrt(2)), 1.0], rtol=1e-15)
    np.testing.assert_allclose(one_by_one[1].numpy(), [1.0, 1.0], rtol=1e-15)


def test_the_norm_of_a_long_float32_row_is_accumulated_in_float64():
    """10^6 equal entries, where the error of a float64 sum is at most d * 2^-53 = 1.2e-10 in any order."""
    row = torch.full((1, 10**6), 0.1, dtype=torch.float32)
    exact = 1000 * float(np.float32(0.1))
    (factors,) = clip_factors(Rows((row.double(),), (None,)).squared_norms()[None], RecordClip(1.0))
    np.testing.assert_allclose(factors.numpy(), [1 / exact], rtol=1.2e-10)


class Mixed(nn.Module):
    """A layer without a rule beside one with: records go through torch.func."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.last = nn.Linear(64, 10)

    def forward(self, images):
        return self.last(images.flatten(start_dim=1) * self.scale)


@pytest.mark.parametrize(
    ("poison", "memory"),
    [
        *((poison, None) for poison in (math.nan, math.inf, 3e38)),
        (math.nan, 1),
        *(pytest.param(poison, 1, marks=pytest.mark.slow) for poison in (math.inf, 3e38)),
    ],
)
@pytest.mark.parametrize(("make", "path"), [("mlp", Path.ONE_PASS), ("cnn", Path.ONE_PASS), (Mixed, Path.VMAP)])
@pytest.mark.parametrize("kind", list(Clipping))
def test_a_record_whose_gradient_is_not_finite_adds_nothing(make, path, kind, poison, memory):
    """With a record that arithmetic cannot bear, and without it, in tiles of one record and of all, which
    float32 rounds otherwise. An error would tell which of the two it is. 3e38 overflows in some models only."""
    name = make if isinstance(make, str) else "mlp"
    records, model = some_records(name), networks.build(name) if isinstance(make, str) else make()
    records.features[4, 0, 3, 3] = poison
    others = records.take(np.delete(np.arange(N_RECORDS), 4))
    engine = RecordEngine(model, example_of(records), device="cpu", memory_bytes=memory)
    assert engine.path is path
    at, clip = 10 * networks.flatten(model), RecordClip(1.0, kind)
    (found,), (expected,) = (engine.clipped_sums(at, [own], clip) for own in (records, others))
    (alone,) = engine.clipped_sums(at, [records.take(np.array([4]))], clip)
    assert np.linalg.norm(found - expected - alone) <= 1e-5
    assert np.linalg.norm(alone) <= (1 + 1e-12 if poison == 3e38 else 0)
    assert np.linalg.norm(expected) > 0.1


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_without_a_bound_a_gradient_that_is_not_finite_is_refused(poison):
    """One bad pixel in one record; the message counts records and shows no value."""
    records, model = some_records("mlp"), networks.build("mlp")
    records.features[4, 0, 3, 3] = poison
    engine = RecordEngine(model, example_of(records), device="cpu")
    with pytest.raises(NonFiniteGradientError, match=f"gradients of 1 of {N_RECORDS} records"):
        engine.clipped_sums(networks.flatten(model), [records], RecordClip(math.inf))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(32), nn.SyncBatchNorm(32), nn.InstanceNorm1d(32, track_running_stats=True)]
)
def test_layers_that_mix_records_are_refused_by_name(layer):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.Linear(32, 10))
    with pytest.raises(RecordMixingLayerError, match=rf"layer '2' \({type(layer).__name__}\) mixes"):
        clipped_gradient_sum(
            networks.flatten(model), some_records("mlp"), model=model, record_clip_norm=1.0, device="cpu"
        )


def test_normalisation_within_a_record_is_accepted():
    refuse_record_mixing(nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4)))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_bounds_outside_their_range_are_refused(bound):
    with pytest.raises(ArgumentError, match="record_clip_norm: expected a number above 0"):
        RecordClip(bound)


@pytest.mark.parametrize("n_records", [0, 3])
def test_a_vector_of_another_model_is_refused(n_records):
    """Even when there is no record to take a gradient of."""
    with pytest.raises(DimensionError):
        clipped_gradient_sum(
            networks.initial_parameters("cnn", seed=0),
            some_records("mlp", n_records),
            model=networks.build("mlp"),
            record_clip_norm=1.0,
        )


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ArgumentError, match="sees no CUDA device"):
        resolve_device("cuda")
    with pytest.raises(UnknownNameError, match="unknown device 'tpu'"):
        resolve_device("tpu")
    for malformed in ("cuda:", "cuda:x", "cpu:0"):
        with pytest.raises(UnknownNameError if malformed != "cuda:" else ArgumentError):
            resolve_device(malformed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ArgumentError, match="sees 2 CUDA devices"):
        resolve_device("cuda:2")


# Many clients at once


class TiedWeights(nn.Module):
    """Uses one matrix twice, once outside of any layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, images):
        hidden = torch.tanh(self.first(images.flatten(1)))
        return self.last(nn.functional.linear(hidden, self.first.weight))


class Recurrent(nn.Module):
    """PyTorch's own LSTM, for which torch.func has no batching rule."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.last = nn.Linear(6, 10)

    def forward(self, images):
        return self.last(self.lstm(images[:, 0])[0][:, -1])


def normalised():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=(1, 2), dilation=2, bias=False),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, (2, 1)),
        nn.Flatten(2),
        nn.LazyLinear(5),
        nn.LayerNorm(5),
        nn.Dropout(0.0),
        nn.Flatten(),
        nn.LazyLinear(10, bias=False),
    )


def grouped():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.LazyLinear(10)
    )


MODELS = {
    "mlp": (lambda: networks.build("mlp"), 8, Path.ONE_PASS),
    "cnn": (lambda: networks.build("cnn"), 28, Path.ONE_PASS),
    "normalised": (normalised, 12, Path.ONE_PASS),
    "grouped": (grouped, 8, Path.VMAP),
    "tied": (TiedWeights, 8, Path.VMAP),
    "recurrent": (Recurrent, 8, Path.ONE_BY_ONE),
}


def made(name):
    """The model, its records and the path that an engine must choose for it."""
    make, side, path = MODELS[name]
    torch.manual_seed(3)
    model = make().eval()
    model(torch.zeros(1, 1, side, side))  # lazy layers learn their sizes
    return model, datasets.digits(side=side).train, path


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("sizes", [(5, 0, 1, 7), (1, 0, 1, 1)], ids=["several", "a record each"])
def test_all_clients_at_once_equal_the_loop_over_single_records(name, dtype, tolerance, sizes):
    """Four clients, one of them without records, in tiles that cut through clients; every path."""
    model, records, path = made(name)
    clients = [records.take(np.arange(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]
    parameters = networks.flatten(model).astype(np.float64 if dtype is torch.float64 else np.float32)
    ((_, norm),) = slow_gradients(model.double(), records.take(np.arange(1)))
    bound = 0.5 * norm
    engine = RecordEngine(model.float(), torch.zeros(records.shape), device="cpu", dtype=dtype, memory_bytes=200_000)
    sums = engine.clipped_sums(parameters, clients, RecordClip(bound))
    assert engine.path is path
    assert sums.shape == (4, len(parameters))
    assert_array_equal(sums[1], 0.0)
    for total, own in zip(sums, clients, strict=True):
        slow = slow_clipped_sum(slow_gradients(model.to(dtype), own), bound)
        assert np.linalg.norm(total - slow) <= tolerance * np.linalg.norm(slow)


def slow_per_layer_sum(model, records, bound):
    """Each layer with parameters against bound / sqrt(L), one record at a time."""
    layers = [layer for layer in model.modules() if list(layer.parameters(recurse=False))]
    total = [np.zeros(sum(p.numel() for p in layer.parameters(recurse=False))) for layer in layers]
    for i in range(len(records)):
        one = torch.from_numpy(records.features[i : i + 1]).double()
        model.zero_grad()
        nn.functional.cross_entropy(model(one), torch.from_numpy(records.labels[i : i + 1])).backward()
        for k, layer in enumerate(layers):
            gradient = np.concatenate([p.grad.numpy().ravel() for p in layer.parameters(recurse=False)])
            total[k] += gradient * min(1.0, bound / math.sqrt(len(layers)) / np.linalg.norm(gradient))
    return np.concatenate(total)


@pytest.mark.parametrize("name", ["cnn", "grouped"])
def test_per_layer_clipping_equals_the_loop(name):
    """S / sqrt(L) for each layer, float64."""
    model, records, _ = made(name)
    some = records.take(np.arange(6))
    engine = RecordEngine(model, torch.zeros(records.shape), device="cpu", dtype=torch.float64)
    (total,) = engine.clipped_sums(
        networks.flatten(model).astype(np.float64), [some], RecordClip(0.7, Clipping.PER_LAYER)
    )
    slow = slow_per_layer_sum(model.double(), some, 0.7)
    assert np.linalg.norm(total - slow) <= 1e-10 * np.linalg.norm(slow)
    assert np.linalg.norm(total) <= 0.7 * len(some)


def test_the_same_arguments_give_the_same_bits():
    """Two engines, two calls."""
    model, records, _ = made("cnn")
    clients = [records.take(np.arange(30 * i, 30 * (i + 1))) for i in range(5)]
    runs = [
        RecordEngine(model, torch.zeros(records.shape), device="cpu").clipped_sums(
            networks.flatten(model), clients, RecordClip(1.0)
        )
        for _ in range(2)
    ]
    assert_array_equal(*runs)


def test_texts_equal_the_loop_over_single_records():
    """The LSTM classifier: an embedding, and linear layers that run once per word."""
    model = networks.build("lstm", seed=2)
    random = np.random.default_rng(0)
    records = datasets.Records(random.integers(0, 2000, size=(6, 32)), np.arange(6) % 3)
    engine = RecordEngine(model, datasets.example_of(records), device="cpu", dtype=torch.float64)
    sums = engine.clipped_sums(networks.flatten(model).astype(np.float64), [records], RecordClip(0.1))
    assert engine.path is Path.ONE_PASS
    total = np.zeros(engine.dim)
    model.double()
    for tokens, label in zip(records.features, records.labels, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(tokens[None])), torch.tensor([label])).backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in model.parameters()])
        total += gradient * min(1.0, 0.1 / np.linalg.norm(gradient))
    assert np.linalg.norm(sums[0] - total) <= 1e-10 * np.linalg.norm(total)


class BatchMean(nn.Module):
    """Mixes records without any layer that is known to."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, images):
        flat = images.flatten(1)
        return self.last(flat - flat.mean(dim=0))


def test_a_model_that_mixes_records_by_itself_is_refused():
    with pytest.raises(RecordMixingLayerError, match="BatchMean"):
        RecordEngine(BatchMean(), torch.zeros(1, 8, 8), device="cpu")


@pytest.mark.parametrize(
    ("model", "why"),
    [(nn.Sequential(nn.Flatten(), nn.Linear(3, 10)), "mat1 and mat2"), (nn.Conv2d(1, 2, 3), "logits")],
)
def test_a_model_for_other_records_is_refused(model, why):
    with pytest.raises(ModelInputError, match=rf"does not fit records of shape \(1, 8, 8\): .*{why}"):
        RecordEngine(model, torch.zeros(1, 8, 8), device="cpu")


def test_pixels_as_bytes_are_their_255th_parts():
    images = np.random.default_rng(0).integers(0, 256, size=(4, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(4)
    sums = [
        clipped_gradient_sum(
            networks.initial_parameters("mlp", seed=0),
            datasets.Records(features, labels),
            model=networks.build("mlp"),
            record_clip_norm=1.0,
        )
        for features in (images, images.astype(np.float32) / np.float32(255))
    ]
    assert_array_equal(*sums)


def test_bytes_and_floats_in_one_batch():
    """One client's images are bytes, another's floats: each counts for what it stands for."""
    images = np.random.default_rng(0).integers(0, 256, size=(4, 1, 8, 8), dtype=np.uint8)
    as_bytes = datasets.Records(images, np.arange(4))
    as_floats = datasets.Records(images.astype(np.float32) / np.float32(255), np.arange(4))
    engine = RecordEngine(networks.build("mlp"), torch.zeros(1, 8, 8), device="cpu")
    sums = engine.clipped_sums(networks.initial_parameters("mlp", seed=0), [as_bytes, as_floats], RecordClip(1.0))
    assert_array_equal(*sums)
