"""A GPU's computation, without one: its form of the sums, on a CPU, and its devices, on PyTorch's `meta`.

A tensor on `meta` has no values, and an operation that mixes it with one on the CPU is an error, as on a GPU. Twins on
a real one, marked `gpu`: here, tests/clients/gradients/test_engine.py and tests/clients/gradients/test_model_stack.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from precad.clients.gradients import layers, segments
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import ModelByModel, ModelStack
from precad.clients.gradients.one_pass import one_pass
from precad.clients.gradients.record_clipping import Clipping, RecordClip, clip_factors
from precad.clients.gradients.segments import grouped_products
from precad.clients.models import networks
from precad.clients.models.losses import CROSS_ENTROPY
from precad.clients.records import Records, digits
from precad.clients.records.records import example
from tests.harness.gradient_sums import clipped_gradient_sum
from tests.harness.models import dimension_of

SIZES = (7, 1, 13, 4)
"""Records of each client of a round."""


def clients_of(name: str) -> list[Records]:
    """Return the digits of each client, as many as `SIZES` says."""
    records = digits(side=networks.image_side(name)).train
    ends = [0, *itertools.accumulate(SIZES)]
    return [records.take(np.arange(start, stop)) for start, stop in itertools.pairwise(ends)]


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    widths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    rows=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_products_of_groups_are_those_of_each_segment(
    sizes: list[int], widths: tuple[int, int], rows: int, seed: int
) -> None:
    """Whatever the segments are, and however many a group has."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn((sum(sizes), width), generator=generator, dtype=torch.float64) for width in widths)
    ends = [0, *itertools.accumulate(sizes)]
    parts = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_GROUPED_ROWS", rows)
        found = grouped_products(left, right, parts)
    expected = torch.stack([left[part].T @ right[part] for part in parts])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clipping", list(Clipping))
def test_a_stack_of_clients_with_different_numbers_of_records_sums_as_the_loop(
    monkeypatch: pytest.MonkeyPatch, clipping: Clipping
) -> None:
    """Copies fill up the shorter ones, between the segments, and are nobody's."""
    engine = RecordEngine(networks.build("mlp"), torch.zeros(1, 8, 8), device="cpu", dtype=torch.float64)
    at = 0.1 * np.random.default_rng(0).standard_normal((len(SIZES), engine.dim))
    clients, clip = clients_of("mlp"), RecordClip(0.5, clipping)
    expected = ModelByModel(engine).clipped_sums(at, clients, clip)
    for module in (layers, segments):
        monkeypatch.setattr(module, "LOOPING_DEVICES", ())
    np.testing.assert_allclose(ModelStack(engine).clipped_sums(at, clients, clip), expected, atol=1e-12)


@pytest.mark.parametrize("clipping", list(Clipping))
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_sums_of_an_accelerator_are_those_of_a_cpu(
    name: str, clipping: Clipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, with clients of different sizes; the bound clips some records and not others."""
    clients, clip = clients_of(name), RecordClip(3.0, clipping)
    parameters = networks.initial_parameters(name, seed=5).astype(np.float64)
    side = networks.image_side(name)
    engine = RecordEngine(networks.build(name), torch.zeros(1, side, side), device="cpu", dtype=torch.float64)
    one_by_one = engine.clipped_sums(parameters, clients, clip)
    for module in (layers, segments):
        monkeypatch.setattr(module, "LOOPING_DEVICES", ())
    together = engine.clipped_sums(parameters, clients, clip)
    assert np.linalg.norm(one_by_one) > 0
    assert np.linalg.norm(together - one_by_one) <= 1e-12 * np.linalg.norm(one_by_one)


@pytest.mark.parametrize("name", sorted(networks.ARCHITECTURES))
def test_a_pass_stays_on_its_device(name: str) -> None:
    """Nothing that is made on the way, factors and indices of segments included, is on the CPU."""
    model: nn.Module = networks.build(name).to("meta").eval().requires_grad_(requires_grad=False)
    architecture = networks.ARCHITECTURES[name]
    one = example(architecture.shape, is_text=architecture.is_text).to("meta")
    features = one.expand(sum(SIZES), *architecture.shape)
    labels = torch.zeros(sum(SIZES), dtype=torch.int64, device="meta")
    ends = [0, *itertools.accumulate(SIZES)]
    parts = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
    gradients = one_pass(model, features, labels, CROSS_ENTROPY)
    factors = clip_factors(torch.stack([layer.squared_norms() for layer in gradients]), RecordClip(1.0))
    sums = torch.cat([layer.weighted_sums(f, parts) for layer, f in zip(gradients, factors, strict=True)], dim=1)
    assert (sums.device.type, tuple(sums.shape)) == ("meta", (len(SIZES), dimension_of(name)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_gpu_s_sums_of_several_clients(name: str) -> None:
    """In float64, each client's beside a pass of its own on the CPU; twice, to the same bits."""
    clients = clients_of(name)
    parameters = networks.initial_parameters(name, seed=5).astype(np.float64)
    side = networks.image_side(name)
    engine = RecordEngine(networks.build(name), torch.zeros(1, side, side), device="cuda", dtype=torch.float64)
    found, again = (engine.clipped_sums(parameters, clients, RecordClip(3.0)) for _ in range(2))
    np.testing.assert_array_equal(found, again)
    for row, own in zip(found, clients, strict=True):
        alone = clipped_gradient_sum(parameters, own, model=networks.build(name), record_clip_norm=3.0, device="cpu")
        assert np.linalg.norm(row - alone) <= 1e-10 * np.linalg.norm(alone)
