"""Stacks of models against the loop over clients: the same sums, whoever has how many records, in whatever tiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import Tensor, nn

from precad.clients.errors import DimensionError, ModelRecordError, NonFiniteGradientError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import ModelByModel, ModelStack, can_stack, own_models
from precad.clients.gradients.record_clipping import Clipping, RecordClip
from precad.clients.gradients.stacked_layers import stacked
from precad.clients.models import networks
from precad.clients.records import Records
from precad.clients.training.descent import descend, descend_together

SIZES = (7, 0, 30, 1, 29, 7)
"""Ragged; nobody's for one of them."""
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


class Normed(nn.Module):
    """Every rule that the named models do not use: group and layer norm with parameters, no bias, a layer run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, bias=False)
        self.group = nn.GroupNorm(2, 4)
        self.layer = nn.LayerNorm((3, 3))
        self.twice = nn.Linear(36, 36, bias=False)
        self.last = nn.Linear(36, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> (batch, 10)."""
        seen = self.layer(self.group(self.conv(images))).flatten(start_dim=1)
        logits: Tensor = self.last(torch.tanh(self.twice(torch.relu(self.twice(seen)))))
        return logits


class Padded(nn.Module):
    """Words, of which the padding has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 5, padding_idx=0)
        self.last = nn.Linear(5, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) -> (batch, 10)."""
        logits: Tensor = self.last(self.words(tokens).mean(dim=1))
        return logits


def made(name: str) -> tuple[nn.Module, Tensor]:
    """A model, and a record's features."""
    if name == "normed":
        return Normed(), torch.zeros(1, 8, 8)
    if name == "padded":
        return Padded(), torch.zeros(6, dtype=torch.int64)
    shape, is_text = networks.ARCHITECTURES[name].shape, networks.ARCHITECTURES[name].is_text
    return networks.build(name), torch.zeros(shape, dtype=torch.int64 if is_text else torch.float32)


def records_of(example: Tensor, sizes: tuple[int, ...] = SIZES) -> list[Records]:
    """Made up, different for each client."""
    generator = np.random.default_rng(7)
    labels = [generator.integers(0, 10, n) for n in sizes]
    if example.dtype == torch.int64:
        return [Records(generator.integers(0, 12, (len(own), *example.shape)), own) for own in labels]
    return [Records(generator.random((len(own), *example.shape), dtype=np.float32), own) for own in labels]


def own_parameters(model: nn.Module, n: int) -> np.ndarray:
    """Near one start, as after local steps."""
    start = networks.flatten(model).astype(np.float64)
    return start + 0.02 * np.random.default_rng(3).standard_normal((n, len(start)))


def engine_of(model: nn.Module, example: Tensor, dtype: torch.dtype, memory: int | None = None) -> RecordEngine:
    return RecordEngine(model, example, device="cpu", dtype=dtype, memory_bytes=memory)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in ("mlp", "cnn", "normed", "padded") for dtype in (torch.float32, torch.float64)),
        ("lstm", torch.float32),
    ],
)
def test_a_stack_gives_the_sums_of_the_loop(name: str, dtype: torch.dtype) -> None:
    """Without clipping, clipped as a whole, clipped by layer; every client within the tolerance of its own norm."""
    model, example = made(name)
    engine, clients = engine_of(model, example, dtype), records_of(example)
    at = own_parameters(model, len(clients))
    loop, stack = ModelByModel(engine), ModelStack(engine)
    assert can_stack(engine)
    for expected, got in [
        (loop.gradient_sums(at, clients), stack.gradient_sums(at, clients)),
        *(
            (loop.clipped_sums(at, clients, clip), stack.clipped_sums(at, clients, clip))
            for clip in (RecordClip(0.5), RecordClip(0.5, Clipping.PER_LAYER))
        ),
    ]:
        assert_array_equal(got[1], 0.0)
        norms = np.linalg.norm(expected, axis=1)
        assert (norms[np.array(SIZES) > 0] > 0.01).all()
        assert (np.linalg.norm(got - expected, axis=1) <= TOLERANCES[dtype] * norms).all()


def test_tiles_change_nothing_and_records_beyond_a_tile_are_cut() -> None:
    """From a tile that holds one record of one model to one that holds everything."""
    model, example = made("mlp")
    clients = records_of(example, (7, 40, 3, 3, 19))
    at = own_parameters(model, len(clients))
    expected = ModelByModel(engine_of(model, example, torch.float64)).gradient_sums(at, clients)
    needed = engine_of(model, example, torch.float64).bytes_per_record
    for memory in (1, 24 * len(at[0]) + 5 * needed, 60 * len(at[0]) + 20 * needed, 2**30):
        stack = ModelStack(engine_of(model, example, torch.float64, memory))
        got = stack.gradient_sums(at, clients), stack.clipped_sums(at, clients, RecordClip(1e9))
        assert max(np.linalg.norm(sums - expected) for sums in got) <= 1e-10 * np.linalg.norm(expected)


def test_a_stack_repeats_to_the_bit_and_no_client_sees_another() -> None:
    model, example = made("mlp")
    engine, clients = engine_of(model, example, torch.float32), records_of(example)
    at = own_parameters(model, len(clients))
    first, again = (ModelStack(engine).gradient_sums(at, clients) for _ in range(2))
    assert_array_equal(first, again)
    elsewhere = at.copy()
    elsewhere[0] += 1.0
    moved = ModelStack(engine).gradient_sums(elsewhere, clients)
    assert_array_equal(moved[1:], first[1:])
    assert not np.array_equal(moved[0], first[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [None, 8])
def test_descending_together_is_descending_one_by_one(dtype: torch.dtype, batch: int | None) -> None:
    """Six steps with momentum and weight decay, on Poisson samples and on batches of which some are short."""

    class Training:
        local_batch, local_momentum, local_weight_decay = batch, 0.9, 0.01

    model, example = made("mlp")
    engine, clients = engine_of(model, example, dtype), records_of(example)
    theta = networks.flatten(model)
    common = {"steps": 6, "rate": 0.1, "sample_rate": 0.3, "training": Training()}

    def draws() -> list:
        return [np.random.Generator(np.random.PCG64(i)).bytes for i in range(len(clients))]

    expected = [
        descend(theta, own, engine=engine, random_bytes=draw, **common)
        for own, draw in zip(clients, draws(), strict=True)
    ]
    rates = [common.pop("sample_rate")] * len(clients)
    got = descend_together(
        theta, clients, models=ModelStack(engine), sample_rates=rates, random_bytes=draws(), **common
    )
    assert_array_equal(got[1], theta.astype(np.float64))
    for one, twin in zip(got, expected, strict=True):
        moved = np.linalg.norm(twin - theta)
        assert np.linalg.norm(one - twin) <= TOLERANCES[dtype] * moved


def test_vectors_of_another_model_are_refused() -> None:
    model, example = made("mlp")
    engine, clients = engine_of(model, example, torch.float32), records_of(example)
    for sums in (ModelStack(engine).gradient_sums, ModelByModel(engine).gradient_sums):
        with pytest.raises(DimensionError):
            sums(np.zeros((len(clients), 7)), clients)


def test_what_is_not_finite_is_refused() -> None:
    model, example = made("mlp")
    engine, clients = engine_of(model, example, torch.float32), records_of(example)
    at = own_parameters(model, len(clients))
    at[4] = np.inf
    with pytest.raises(NonFiniteGradientError):
        ModelStack(engine).gradient_sums(at, clients)
    with pytest.raises(NonFiniteGradientError):
        ModelStack(engine).clipped_sums(at, clients, RecordClip(math.inf))


def test_what_is_not_finite_adds_nothing_to_clipped_sums() -> None:
    """One bad record of a client among others of it and of others, as in the loop."""
    model, example = made("mlp")
    engine, clients = engine_of(model, example, torch.float32), records_of(example)
    at = own_parameters(model, len(clients))
    at[4] = np.inf
    clients[2].features[1, 0, 0, 0] = np.nan
    found, expected = (kind(engine).clipped_sums(at, clients, RecordClip(1.0)) for kind in (ModelStack, ModelByModel))
    assert np.linalg.norm(found - expected) <= 1e-5
    assert np.isfinite(found).all()
    assert not found[4].any()
    assert found[2].any()


class Tells(nn.Module):
    """Says what is in a record that it does not like."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.is_picky = False

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> (batch, 10)."""
        if self.is_picky:
            raise ValueError(f"found {float(images.max())}")
        logits: Tensor = self.last(images.flatten(start_dim=1))
        return logits


def test_what_a_model_says_of_a_record_stays_here() -> None:
    """Neither in the message nor in the chain of errors, of plain and of clipped sums."""
    model, example = Tells(), torch.zeros(1, 8, 8)
    stack, clients = ModelStack(engine_of(model, example, torch.float32)), records_of(example)
    at = own_parameters(model, len(clients))
    stack._model.is_picky = True  # type: ignore[assignment]
    for sums in (stack.gradient_sums, lambda *given: stack.clipped_sums(*given, RecordClip(1.0))):
        with pytest.raises(ModelRecordError) as refused:
            sums(at, clients)
        assert "ValueError" in str(refused.value)
        assert "found" not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__


class Nosy(nn.Module):
    """Reads a layer's weight itself, which a stack does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> (batch, 10)."""
        scale = 1.0 + 0.0 * float(self.last.weight.detach().sum())
        logits: Tensor = self.last(images.flatten(start_dim=1)) * scale
        return logits


class Tied(nn.Module):
    """Two layers with one weight: no rule of the one pass covers it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> (batch, 10)."""
        logits: Tensor = self.last(self.second(torch.tanh(self.first(images.flatten(start_dim=1)))))
        return logits


def test_who_is_stacked() -> None:
    """Linear layers are, on a CPU; convolutions there, and what a stack cannot run, go model by model."""
    example = torch.zeros(1, 8, 8)
    for name, kind in (("mlp", ModelStack), ("cnn", ModelByModel)):
        assert type(own_models(engine_of(*made(name), torch.float32))) is kind
    for model in (Nosy(), Tied()):
        engine = engine_of(model, example, torch.float32)
        assert not can_stack(engine)
        assert type(own_models(engine)) is ModelByModel
    assert type(own_models(engine_of(*made("mlp"), torch.float32), one_by_one=True)) is ModelByModel


def test_a_layer_without_a_rule_is_named_by_a_key_error() -> None:
    with pytest.raises(KeyError):
        stacked(nn.Sequential(nn.Flatten(), nn.Bilinear(2, 2, 10)))


@pytest.mark.gpu
def test_a_stack_gives_the_sums_of_the_loop_on_a_gpu() -> None:
    """With convolutions too; on the device the stack is the way taken."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    model, example = made("cnn")
    engine = RecordEngine(model, example, device="cuda")
    clients = records_of(example)
    at = own_parameters(model, len(clients))
    assert type(own_models(engine)) is ModelStack
    expected, got = ModelByModel(engine).gradient_sums(at, clients), ModelStack(engine).gradient_sums(at, clients)
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)
