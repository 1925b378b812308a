"""Which models an engine takes, and by which path: legal ones that are easy to get wrong, against a loop over records.

A gradient that is not of one record alone can be longer than its bound, whatever the clipping says.
"""

import asyncio

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from precad.clients.errors import (
    ArgumentError,
    ModelInputError,
    RecordMixingLayerError,
    UnsteadyModelError,
)
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import ModelByModel, ModelStack, can_stack
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path
from precad.clients.models.losses import OwnLoss
from precad.clients.models.networks import build, flatten, trained, unflatten
from precad.clients.process import Trainer
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.clients.training.evaluation import accuracy
from precad.lab.simulation import Simulation, SimulationSettings
from precad.lab.simulation.randomness import SeededRandomness
from precad.protos.task.task import Task
from tests.clients.gradients.two_layers import IMAGES, N, TwoLayers, ZeroHead


class BehindAZeroHead(ZeroHead):
    """Uses a layer's weight a second time, outside of the layer."""

    def hidden(self, images):
        return torch.tanh(nn.functional.linear(super().hidden(images), self.first.weight[:, :16]))


class Sorts(TwoLayers):
    """Brings the records into another order between two layers, and back."""

    def forward(self, images):
        order = images.flatten(1).sum(dim=1).argsort(descending=True)
        return self.last(self.hidden(images)[order])[order.argsort()]


class Routes(TwoLayers):
    """Another layer, for bright records alone."""

    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(16, 16)

    def hidden(self, images):
        hidden = super().hidden(images)
        is_bright = images.flatten(1).mean(dim=1) > 0.4
        return hidden.masked_scatter(is_bright[:, None], self.extra(hidden[is_bright]))


class RoutesRarely(Routes):
    """All made-up records take the same way through it; real ones do not."""

    def hidden(self, images):
        hidden = TwoLayers.hidden(self, images)
        is_usual = images.flatten(1).amax(dim=1) > 0.09
        return hidden.masked_scatter(is_usual[:, None], self.extra(hidden[is_usual]))


class Overwrites(TwoLayers):
    """Change in place what a layer wrote, where records are bright enough."""

    def forward(self, images):
        return super().forward(images).clamp_(-1.0, 1.0)


class OverwritesItsInput(TwoLayers):
    """A layer has read it by then."""

    def forward(self, images):
        flat = images.flatten(1) * 1.0
        hidden = torch.tanh(self.first(flat))
        return self.last(hidden + flat.mul_(-1.0)[:, :16])


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (TwoLayers, Path.ONE_PASS),
        (BehindAZeroHead, Path.VMAP),
        (Sorts, Path.VMAP),
        (Routes, Path.ONE_BY_ONE),
        (RoutesRarely, Path.ONE_BY_ONE),
        (Overwrites, Path.ONE_PASS),
    ],
)
def test_unusual_models_have_the_gradients_of_the_loop(make, path):
    """In float64, at parameters that are not the initial ones; and a record moves the sum by at most R."""
    model, clip = _shifted(make()), RecordClip(1.0)
    engine = RecordEngine(make(), torch.zeros(1, 8, 8), device="cpu", dtype=torch.float64)
    assert engine.path is path
    at = torch.cat([own.detach().reshape(-1) for own in model.parameters()]).numpy()
    (found,) = engine.clipped_sums(at, [IMAGES], clip)
    expected = _loop(model)
    assert np.linalg.norm(found - expected) <= 1e-10 * np.linalg.norm(expected)
    for left_out in range(N):
        (without,) = engine.clipped_sums(at, [IMAGES.take(np.delete(np.arange(N), left_out))], clip)
        assert np.linalg.norm(found - without) <= 1 + 1e-12


@pytest.mark.parametrize("make", [TwoLayers, Sorts, Overwrites])
def test_a_stack_of_unusual_models_is_the_loop_over_them(make):
    """Where it can be stacked at all; records of other clients are never seen by a client's model."""
    engine = RecordEngine(make(), torch.zeros(1, 8, 8), device="cpu", dtype=torch.float64)
    assert can_stack(engine) is (make is not Sorts)
    if make is Sorts:
        return
    models = 0.3 * np.random.default_rng(3).standard_normal((3, engine.dim))
    clients = [IMAGES, IMAGES.take(np.arange(3)), IMAGES.take(np.arange(4, 11))]
    stack, loop, clip = ModelStack(engine), ModelByModel(engine), RecordClip(0.5)
    np.testing.assert_allclose(stack.gradient_sums(models, clients), loop.gradient_sums(models, clients), atol=1e-12)
    np.testing.assert_allclose(
        stack.clipped_sums(models, clients, clip), loop.clipped_sums(models, clients, clip), atol=1e-12
    )


class Accumulates(TwoLayers):
    """Adds up the logits of the records before: the first record alone knows nothing of it."""

    def forward(self, images):
        return super().forward(images).cumsum(dim=0)


class BehindItsHead(ZeroHead):
    """Mixes records where no probe of the initial model can see it."""

    def hidden(self, images):
        hidden = super().hidden(images)
        return hidden - hidden.mean(dim=0)


class TimeFirst(nn.Module):
    """An LSTM that takes the batch for time, for want of `batch_first`."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6)
        self.last = nn.Linear(6, 10)

    def forward(self, images):
        return self.last(self.lstm(images[:, 0])[0][:, -1])


@pytest.mark.parametrize("make", [Accumulates, BehindItsHead, TimeFirst])
def test_models_that_mix_records_are_refused_wherever_they_do_it(make):
    with pytest.raises(RecordMixingLayerError, match=make.__name__):
        RecordEngine(make(), torch.zeros(1, 8, 8), device="cpu")


class Averages(ZeroHead):
    """A running mean of its own, which evaluation moves as well."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def hidden(self, images):
        hidden = super().hidden(images)
        self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(dim=0))
        return hidden - self.mean


class AlwaysDrops(TwoLayers):
    def hidden(self, images):
        return nn.functional.dropout(super().hidden(images))


class ScalesItsInput(TwoLayers):
    def hidden(self, images):
        return super().hidden(images.mul_(0.5))


class KeepsTheLargest(ZeroHead):
    """Scales by the largest number so far, of which no buffer tells."""

    largest = 1e-3

    def hidden(self, images):
        self.largest = max(self.largest, float(images.max()))
        return super().hidden(images / self.largest)


class BuffersTheLargest(ZeroHead):
    """Keeps it in a buffer, which made-up records do not move twice."""

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.tensor(1e-3))

    def hidden(self, images):
        self.largest.copy_(torch.maximum(self.largest, images.max()))
        return super().hidden(images / self.largest)


@pytest.mark.parametrize("make", [Averages, AlwaysDrops, KeepsTheLargest, BuffersTheLargest])
def test_models_that_keep_records_or_draw_are_refused(make):
    with pytest.raises(UnsteadyModelError, match=f"model {make.__name__}: it draws or keeps"):
        RecordEngine(make(), torch.zeros(1, 8, 8), device="cpu")


class KeepsTheLongest(nn.Module):
    """Divides a text's sum by the length of the longest so far."""

    longest = 1

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(5, 8), nn.Linear(8, 10)

    def forward(self, texts):
        self.longest = max(self.longest, int((texts != 0).sum(dim=1).max()))
        return self.last(self.embedding(texts).sum(dim=1) / self.longest)


def test_a_model_that_keeps_the_longest_text_is_refused():
    """One full text shows all that others can: only a model that has seen none tells."""
    with pytest.raises(RecordMixingLayerError, match="KeepsTheLongest"):
        RecordEngine(KeepsTheLongest(), torch.zeros(6, dtype=torch.int64), device="cpu")


class NumbersWords(nn.Module):
    """Gives tokens rows in the order in which they come; row 0 is padding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last, self.rows = nn.Embedding(5, 8), nn.Linear(8, 10), {0: 0}

    def forward(self, texts):
        texts = torch.where((texts >= 0) & (texts < 10), texts, 0)
        rows = [[self.rows.setdefault(token, len(self.rows)) for token in text] for text in texts.round().tolist()]
        return self.last(self.embedding(torch.tensor(rows)).sum(dim=1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_model_that_numbers_tokens_as_they_come_is_refused(dtype):
    """Else the words of one record would decide which rows the words of all later ones have."""
    with pytest.raises(UnsteadyModelError, match="NumbersWords"):
        RecordEngine(NumbersWords(), torch.zeros(6, dtype=dtype), device="cpu")


def test_a_loss_that_keeps_the_largest_is_refused():
    largest = [1.0]

    def relative(model, record):
        images, labels = record
        largest[0] = max(largest[0], float(images.max()))
        return nn.functional.cross_entropy(model(images / largest[0]), labels)

    with pytest.raises(ArgumentError, match="keep nothing between calls"):
        RecordEngine(TwoLayers(), torch.zeros(1, 8, 8), loss=OwnLoss(relative, "relative"), device="cpu")


def test_a_loss_that_keeps_the_largest_while_it_learns_is_not_bit_exact():
    """The trial of its values finds nothing, as no gradient is asked for there."""
    largest = [1.0]

    def relative(model, record):
        images, labels = record
        found = nn.functional.cross_entropy(model(images), labels)
        if found.requires_grad:
            largest[0] = max(largest[0], float(found.detach()))
        return found / largest[0]

    model = build(f"{__name__}:TwoLayers")  # at one in six initial models, made-up records show the largest at once
    engine = RecordEngine(model, torch.zeros(1, 8, 8), loss=OwnLoss(relative, "relative"), device="cpu")
    assert not engine.passes.is_bit_exact


def test_a_model_that_writes_into_its_input_is_told_so():
    with pytest.raises(UnsteadyModelError, match="change no input in place"):
        RecordEngine(ScalesItsInput(), torch.zeros(1, 8, 8), device="cpu")


class NoSuchShape(TwoLayers):
    def hidden(self, images):
        return super().hidden(images.float()[..., 1:])


@pytest.mark.parametrize(
    ("make", "why"), [(NoSuchShape, "cannot be multiplied"), (OverwritesItsInput, "it has no gradient")]
)
def test_models_that_cannot_be_tried_are_refused_with_the_reason(make, why):
    with pytest.raises(ModelInputError, match=rf"does not fit records of shape \(1, 8, 8\): .*{why}"):
        RecordEngine(make(), torch.zeros(1, 8, 8), device="cpu")


class OwnError(Exception):
    """Is of a kind that no library knows."""


@pytest.mark.parametrize("kind", [OwnError, SystemExit, asyncio.CancelledError, StopIteration, ValueError])
@pytest.mark.parametrize("beside_others", [True, False])
def test_a_model_that_raises_whatever_it_likes_is_refused_in_one_line(kind, beside_others):
    class Raises(TwoLayers):
        def forward(self, x):
            if len(x) > 1 or not beside_others:
                raise kind("first line\nsecond line")
            return super().forward(x)

    with pytest.raises(ModelInputError, match=r"first line$"):
        RecordEngine(Raises(), torch.zeros(1, 8, 8), device="cpu")


@pytest.mark.parametrize("kind", [OwnError, SystemExit, asyncio.CancelledError, ValueError])
def test_a_model_that_refuses_strange_numbers_as_it_likes_takes_one_record_a_pass(kind):
    """Alone with what it refuses, and that record adds zero: no neighbour is taken along."""

    class Refuses(TwoLayers):
        def forward(self, x):
            if not bool(torch.isfinite(x).all()):
                raise kind("no number")
            return super().forward(x)

    assert RecordEngine(Refuses(), torch.zeros(1, 8, 8), device="cpu").passes.n_tile == 1


class Casts(TwoLayers):
    """Takes float32 alone, as code does that names the type."""

    def hidden(self, images):
        return super().hidden(images.float())


class HasAState(nn.Module):
    """A recurrent layer that is given its first state, of the usual type, as PyTorch's documentation writes it."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.last = nn.Linear(6, 10)

    def forward(self, images):
        state = torch.zeros(1, images.size(0), 6), torch.zeros(1, images.size(0), 6)
        return self.last(self.lstm(images[:, 0], state)[0][:, -1])


class HasAConstant(TwoLayers):
    """Makes a matrix of the usual type, and a type that follows the records'."""

    def hidden(self, images):
        assert torch.zeros(2, dtype=torch.float32).dtype is torch.full((2,), 1).float().dtype is torch.float32
        return super().hidden(images) @ torch.eye(16) + torch.arange(16) // 16


@pytest.mark.parametrize(
    ("make", "path"), [(Casts, Path.ONE_BY_ONE), (HasAState, Path.ONE_BY_ONE), (HasAConstant, Path.ONE_PASS)]
)
def test_code_that_names_no_type_or_float32_trains_as_it_was_written(make, path):
    """Its gradients are those of the loop. Where float64 shows nothing, records are never together in a pass."""
    model = build(f"{__name__}:{make.__name__}")
    engine = RecordEngine(model, torch.zeros(1, 8, 8), device="cpu")
    assert (engine.path, engine.passes.n_tile == 1) == (path, path is Path.ONE_BY_ONE)
    (found,) = engine.clipped_sums(flatten(model), [IMAGES], RecordClip(1.0))
    expected = 0.0
    for image, label in zip(IMAGES.features, IMAGES.labels, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(image[None])), torch.tensor([label])).backward()
        gradient = torch.cat([own.grad.reshape(-1) for own in model.parameters()]).numpy()
        expected = expected + gradient * min(1.0, 1.0 / np.linalg.norm(gradient))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert can_stack(engine) is False


class CastsAndMixes(Casts):
    def hidden(self, images):
        hidden = super().hidden(images)
        return hidden - 1e-2 * hidden.mean(dim=0)


class CastsAndKeeps(Casts):
    seen = 0.0

    def hidden(self, images):
        self.seen += 1e-3
        return super().hidden(images) + self.seen


@pytest.mark.parametrize(
    ("make", "error"), [(CastsAndMixes, RecordMixingLayerError), (CastsAndKeeps, UnsteadyModelError)]
)
def test_code_that_takes_float32_alone_is_looked_at_too(make, error):
    with pytest.raises(error, match=make.__name__):
        RecordEngine(make(), torch.zeros(1, 8, 8), device="cpu")


class CastsAndWhispers(Casts):
    """Mixes records by less than rounding in float32 lets anybody see."""

    def hidden(self, images):
        hidden = super().hidden(images)
        return hidden + 1e-6 * hidden.mean(dim=0)


def test_no_record_meets_another_where_float32_hides_it():
    """The gradients' sum is, bit by bit, that of records alone: one more record changes it by its own clipped part."""
    model = CastsAndWhispers()
    engine = RecordEngine(model, torch.zeros(1, 8, 8), device="cpu")
    assert (engine.path, engine.passes.n_tile) == (Path.ONE_BY_ONE, 1)
    alone = [engine.clipped_sums(flatten(model), [IMAGES.take(np.array([i]))], RecordClip(1.0))[0] for i in range(N)]
    (together,) = engine.clipped_sums(flatten(model), [IMAGES], RecordClip(1.0))
    np.testing.assert_allclose(together, np.sum(alone, axis=0), rtol=0, atol=1e-12)


WEIGHTS = torch.linspace(1, 4, 10)


def weighted(model, record):
    """Weigh classes by what was made in float32 before anybody calls it."""
    return nn.functional.cross_entropy(model(record[0]), record[1], weight=WEIGHTS)


def squared(model, record):
    """Compare with a label of the same type, which this function of PyTorch asks for."""
    return nn.BCELoss()(torch.sigmoid(model(record[0])[:, 0]), record[1])


@pytest.mark.parametrize(("loss", "label"), [(weighted, torch.tensor(0)), (squared, torch.tensor(0.0))])
def test_losses_of_one_s_own_are_tried_as_they_were_written(loss, label):
    engine = RecordEngine(TwoLayers(), torch.zeros(1, 8, 8), loss=OwnLoss(loss, "own"), label=label, device="cpu")
    labels = IMAGES.labels.astype(np.float32) / 10 if label.is_floating_point() else IMAGES.labels
    (found,) = engine.clipped_sums(flatten(TwoLayers()), [Records(IMAGES.features, labels)], RecordClip(1.0))
    assert np.isfinite(found).all()
    assert found.any()


def test_a_model_that_cannot_be_copied_is_refused():
    model = TwoLayers()
    model.kept = model.first.weight * 2
    with pytest.raises(ArgumentError, match="model TwoLayers: it cannot be copied"):
        RecordEngine(model, torch.zeros(1, 8, 8), device="cpu")


class Frozen(TwoLayers):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(requires_grad=False)


class FrozenWeight(TwoLayers):
    """Trains the bias of a layer whose weight it keeps."""

    def __init__(self):
        super().__init__()
        self.first.weight.requires_grad_(requires_grad=False)


@pytest.mark.parametrize(("make", "n_kept", "path"), [(Frozen, 64 * 16 + 16, "one-pass"), (FrozenWeight, 1024, "vmap")])
def test_frozen_parameters_are_constants_of_the_model(make, n_kept, path):
    """They are neither in the vector nor in the gradient, which is that of autograd; the state dict still has them."""
    name = f"{__name__}:{make.__name__}"
    model = build(name)
    assert len(flatten(model)) == 64 * 16 + 16 + 170 - n_kept
    assert set(model.state_dict()) == set(TwoLayers().state_dict())
    engine = RecordEngine(build(name), torch.zeros(1, 8, 8), device="cpu", dtype=torch.float64)
    assert engine.path == path
    (found,) = engine.clipped_sums(flatten(model).astype(np.float64), [IMAGES], RecordClip(1.0))
    expected = _loop(model.double())
    assert np.linalg.norm(found - expected) <= 1e-10 * np.linalg.norm(expected)


def _shifted(model):
    """In float64, with noise on every parameter."""
    at = flatten(model) + 0.2 * np.random.default_rng(4).standard_normal(flatten(model).shape)
    model.double().load_state_dict(unflatten(torch.from_numpy(at), model))
    return model


def _loop(model):
    """Every record by itself: one backward pass, and a norm of at most 1."""
    total = 0.0
    for image, label in zip(IMAGES.features, IMAGES.labels, strict=True):
        model.zero_grad()
        logits = model(torch.from_numpy(image[None]).double())
        nn.functional.cross_entropy(logits, torch.tensor([label])).backward()
        gradient = torch.cat([own.grad.reshape(-1) for own in model.parameters()]).numpy()
        total = total + gradient * min(1.0, 1.0 / np.linalg.norm(gradient))
    return total


class RandomFeatures(nn.Module):
    """Drawn once, not trained; the two names of its only layer are one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("directions", torch.randn(64, 32))
        self.last = nn.Linear(32, 10)
        self.head = self.last

    def forward(self, images):
        return self.head(torch.cos(images.flatten(1) @ self.directions))


def test_buffers_are_those_of_the_architecture_whatever_the_seed_of_a_task():
    """One model is what a client trains, what an evaluation reads and what a run saves."""
    name = f"{__name__}:RandomFeatures"
    task = Task(
        clients={"a": N, "b": N},
        rounds=1,
        client_rate=1.0,
        record_rate=1.0,
        record_clip=1.0,
        client_clip=1.0,
        noise_multiplier=1.0,
        learning_rate=1.0,
        model=name,
        model_seed=5,
        dim=330,
    )
    running = Simulation(
        task=task,
        settings=SimulationSettings(),
        records={"a": IMAGES, "b": IMAGES},
        test=IMAGES,
        randomness=SeededRandomness(0),
        device="cpu",
    )
    trainer = Trainer(task=task, records={"a": IMAGES}, conducts={"a": Honest()}, device="cpu")
    for engine in (running.federation.engine, trainer._engine):
        assert_array_equal(engine.model_copy().directions, build(name).directions)
    parameters = np.random.default_rng(0).standard_normal(330).astype(np.float32)
    saved = build(name, seed=3)
    saved.load_state_dict(trained(name, parameters).state_dict())
    with torch.no_grad():
        predicted = saved(torch.from_numpy(IMAGES.features)).argmax(dim=1).numpy()
    assert np.mean(predicted == IMAGES.labels) == accuracy(parameters, name, IMAGES)
    assert_array_equal(flatten(saved), parameters)
