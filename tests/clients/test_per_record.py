"""Clipped per-record gradients against a loop over single records with plain autograd."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from clients import datasets, models
from clients.errors import (
    ArgumentError,
    DimensionError,
    NonFiniteGradientError,
    RecordMixingLayerError,
    UnknownNameError,
)
from clients.per_record import clip_factors, clipped_gradient_sum, refuse_record_mixing, resolve_device

N_RECORDS = 13


def some_records(name, n=N_RECORDS):
    return datasets.digits(side=models.IMAGE_SIDE[name]).train.take(np.arange(n))


def slow_clipped_gradient_sum(model, records, bound):
    """Algorithm 2, lines 2 to 6, literally: one record, one backward pass, one norm at a time."""
    total = np.zeros(models.parameter_count(model))
    for image, label in zip(records.features, records.labels, strict=True):
        model.zero_grad()
        parameters = list(model.parameters())
        logits = model(torch.from_numpy(image[None]).to(parameters[0].dtype))
        nn.functional.cross_entropy(logits, torch.tensor([label])).backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in parameters]).astype(np.float64)
        norm = math.sqrt(math.fsum(entry * entry for entry in gradient))
        total += gradient * min(1.0, bound / norm) if norm > 0 else gradient
    return total


def median_gradient_norm(name, parameters, records):
    """A bound that clips about half of the records."""
    model = models.build(name)
    alone = [
        clipped_gradient_sum(parameters, records.take(np.array([i])), model=model, record_clip_norm=1e9, device="cpu")
        for i in range(len(records))
    ]
    return float(np.median([np.linalg.norm(gradient) for gradient in alone]))


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-10)])
@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_equals_the_loop_over_single_records(name, dtype, tolerance, factor):
    """All records clipped, about half of them, none: relative to the norm of the sum, within the working precision."""
    parameters = models.initial_parameters(name, seed=5).astype(dtype)
    records = some_records(name)
    bound = factor * median_gradient_norm(name, parameters, records)
    fast = clipped_gradient_sum(parameters, records, model=models.build(name), record_clip_norm=bound, device="cpu")
    slow = slow_clipped_gradient_sum(models.build(name, seed=5).to(torch.from_numpy(parameters).dtype), records, bound)
    assert fast.dtype == np.float64
    assert fast.shape == slow.shape
    assert np.linalg.norm(fast - slow) <= tolerance * np.linalg.norm(slow)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu():
    """Twin on the GPU, in float64, where TF32 plays no part."""
    parameters = models.initial_parameters("cnn", seed=5).astype(np.float64)
    on_cpu, on_cuda = (
        clipped_gradient_sum(
            parameters, some_records("cnn"), model=models.build("cnn"), record_clip_norm=1.0, device=device
        )
        for device in ("cpu", "cuda")
    )
    assert np.linalg.norm(on_cuda - on_cpu) <= 1e-10 * np.linalg.norm(on_cpu)


@pytest.mark.parametrize("records_per_chunk", [0, 1, 5, N_RECORDS])
def test_chunks_change_memory_and_not_the_sum(records_per_chunk):
    """A bound too small for one record still takes one at a time."""
    parameters = models.initial_parameters("mlp", seed=5).astype(np.float64)
    model = models.build("mlp")
    bytes_per_record = models.dimension("mlp") * 3 * 8
    whole, chunked = (
        clipped_gradient_sum(
            parameters, some_records("mlp"), model=model, record_clip_norm=1.0, device="cpu", memory_bytes=memory
        )
        for memory in (2**30, records_per_chunk * bytes_per_record)
    )
    np.testing.assert_allclose(chunked, whole, rtol=0, atol=1e-13 * N_RECORDS)


def test_one_record_moves_the_sum_by_at_most_the_bound():
    """Add/remove neighbours; float32 gradients, so up to 1e-6 relative."""
    parameters, records, model = models.initial_parameters("mlp", seed=5), some_records("mlp"), models.build("mlp")
    whole = clipped_gradient_sum(parameters, records, model=model, record_clip_norm=0.5, device="cpu")
    for left_out in range(N_RECORDS):
        neighbour = records.take(np.delete(np.arange(N_RECORDS), left_out))
        reduced = clipped_gradient_sum(parameters, neighbour, model=model, record_clip_norm=0.5, device="cpu")
        assert np.linalg.norm(whole - reduced) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_no_records_give_zeros(name):
    total = clipped_gradient_sum(
        models.initial_parameters(name, seed=0), some_records(name, 0), model=models.build(name), record_clip_norm=1.0
    )
    assert total.dtype == np.float64
    assert_array_equal(total, np.zeros(models.dimension(name)))


def test_clip_factors_at_the_edges():
    """A row of zeros stays, a short row stays, the bound itself stays, a long row shrinks to the bound."""
    rows = torch.tensor([[0.0, 0.0], [0.3, 0.4], [0.6, 0.8], [30.0, 40.0]], dtype=torch.float64)
    np.testing.assert_allclose(clip_factors(rows, 1.0).numpy(), [1.0, 1.0, 1.0, 0.02], rtol=1e-15)


def test_the_norm_of_a_long_float32_row_is_accumulated_in_float64():
    """10^6 equal entries, where the error of a float64 sum is at most d * 2^-53 = 1.2e-10 in any order."""
    row = torch.full((1, 10**6), 0.1, dtype=torch.float32)
    exact = 1000 * float(np.float32(0.1))
    np.testing.assert_allclose(clip_factors(row, 1.0).numpy(), [1 / exact], rtol=1.2e-10)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(poison):
    """One bad pixel in one record; the message counts records and shows no value."""
    records = some_records("mlp")
    records.features[4, 0, 3, 3] = poison
    with pytest.raises(NonFiniteGradientError, match=f"gradients of 1 of {N_RECORDS} records"):
        clipped_gradient_sum(
            models.initial_parameters("mlp", seed=0), records, model=models.build("mlp"), record_clip_norm=1.0
        )


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(32), nn.SyncBatchNorm(32), nn.InstanceNorm1d(32, track_running_stats=True)]
)
def test_layers_that_mix_records_are_refused_by_name(layer):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.Linear(32, 10))
    with pytest.raises(RecordMixingLayerError, match=rf"layer '2' \({type(layer).__name__}\) mixes"):
        clipped_gradient_sum(
            models.flatten(model), some_records("mlp"), model=model, record_clip_norm=1.0, device="cpu"
        )


def test_normalisation_within_a_record_is_accepted():
    refuse_record_mixing(nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4)))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_bounds_outside_their_range_are_refused(bound):
    with pytest.raises(ArgumentError, match="record_clip_norm must be positive and finite"):
        clipped_gradient_sum(
            models.initial_parameters("mlp", seed=0),
            some_records("mlp"),
            model=models.build("mlp"),
            record_clip_norm=bound,
        )


@pytest.mark.parametrize("n_records", [0, 3])
def test_a_vector_of_another_model_is_refused(n_records):
    """Even when there is no record to take a gradient of."""
    with pytest.raises(DimensionError):
        clipped_gradient_sum(
            models.initial_parameters("cnn", seed=0),
            some_records("mlp", n_records),
            model=models.build("mlp"),
            record_clip_norm=1.0,
        )


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ArgumentError, match="sees no CUDA device"):
        resolve_device("cuda")
    with pytest.raises(UnknownNameError, match="unknown device 'tpu'"):
        resolve_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
