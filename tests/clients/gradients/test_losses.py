"""Losses of every kind: the gradient of a record is autograd's, and no record moves a clipped sum by more than R."""

from __future__ import annotations

import copy
import math
import traceback
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from precad.clients.errors import (
    ArgumentError,
    ModelInputError,
    ModelRecordError,
    RecordRangeError,
    TargetError,
    UnknownNameError,
)
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import ModelByModel, ModelStack, can_stack
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path
from precad.clients.gradients.record_range import require_range
from precad.clients.models.losses import LOSSES, Loss, loss_of
from precad.clients.models.networks import flatten, unflatten
from precad.clients.records import Records, example_label_of, example_of

N = 9


class Net(nn.Module):
    """Two layers on a table's row, or on each place of a sequence."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(n_inputs, 6), nn.Linear(6, n_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, .., inputs) -> (n, .., outputs)."""
        found: Tensor = self.last(torch.tanh(self.first(rows)))
        return found


class WithLogits(Net):
    """Gives an object, as transformers do."""

    def forward(self, rows: Tensor) -> Any:
        """See Net."""
        return SimpleNamespace(logits=super().forward(rows), hidden_states=None)


def weighted(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Return a loss of the user's own, with a penalty on the model's parameters."""
    features, label = record
    penalty = sum((own.square().sum() for own in model.parameters()), torch.zeros(()))
    return functional.cross_entropy(model(features), label) * (1 + label.sum()) + 0.01 * penalty


def branching(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Look at values, which only the loop over records can follow."""
    features, label = record
    found = functional.cross_entropy(model(features), label)
    return 2 * found if int(label) == 1 else found


def refusing(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Raise on a label that the model has no logit for, with the label in the text."""
    features, label = record
    if int(label) > 1:
        raise LookupError(f"sekret {int(label)}")
    return functional.cross_entropy(model(features), label)


def overflowing(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Give an infinite loss, of a finite gradient, for the same label."""
    features, label = record
    infinite = torch.where(label.sum() > 1, math.inf, 0.0)
    return functional.cross_entropy(model(features), label.clamp(max=1)) + infinite


RNG = np.random.default_rng(0)
CLASSES = np.arange(N) % 2
ROWS = RNG.standard_normal((N, 4)).astype(np.float32)
PLACES = RNG.standard_normal((N, 3, 4)).astype(np.float32)
TOKENS = RNG.integers(0, 5, (N, 3))
TOKENS[2], TOKENS[3, 1] = -100, -100
VALUES = (3 * RNG.standard_normal((N, 2))).astype(np.float32)

CASES: dict[str, tuple[Any, nn.Module, Records]] = {
    "cross-entropy": ("cross-entropy", Net(4, 2), Records(ROWS, CLASSES)),
    "many classes": ("cross-entropy", Net(4, 300), Records(ROWS, np.arange(N) * 37)),
    "logits": ("cross-entropy", WithLogits(4, 3), Records(ROWS, CLASSES)),
    "binary": ("binary", Net(4, 1), Records(ROWS, CLASSES)),
    "multi-label": ("multi-label", Net(4, 2), Records(ROWS, (VALUES > 0).astype(np.float32))),
    "mse": ("mse", Net(4, 2), Records(ROWS, VALUES)),
    "mse of one": ("mse", Net(4, 1), Records(ROWS, VALUES[:, 0])),
    "huber": ("huber", Net(4, 2), Records(ROWS, VALUES)),
    "tokens": ("token-cross-entropy", Net(4, 5), Records(PLACES, TOKENS)),
    "own": (weighted, Net(4, 2), Records(ROWS, CLASSES)),
    "own, branching": (branching, Net(4, 2), Records(ROWS, CLASSES)),
}


def reference(name: str, model: nn.Module, one: Records) -> Tensor:
    """The loss of a single record, written down once more, with PyTorch's default means."""
    features, label = torch.from_numpy(one.features).double(), torch.from_numpy(one.labels)
    if name.startswith("own"):
        return (branching if "branching" in name else weighted)(model, (features, label))
    found = model(features)
    found = found if isinstance(found, Tensor) else found.logits
    match name:
        case "binary":
            return nn.BCEWithLogitsLoss()(found[0], label.double())
        case "multi-label":
            return nn.BCEWithLogitsLoss()(found, label.double())
        case "mse" | "mse of one":
            return nn.MSELoss()(found.flatten(), label.double().flatten())
        case "huber":
            return nn.HuberLoss()(found, label.double())
        case "tokens":
            kept = label[0] != -100
            return nn.CrossEntropyLoss()(found[0][kept], label[0][kept]) if kept.any() else 0.0 * found.sum()
    return nn.CrossEntropyLoss()(found, label)


def engine_of(name: str, **settings: Any) -> RecordEngine:
    """Return an engine for a case."""
    loss, model, records = CASES[name]
    label = example_label_of(records)
    return RecordEngine(model, example_of(records), loss=loss_of(loss), label=label, device="cpu", **settings)


def parameters_of(name: str) -> NDArray[np.float32]:
    """Away from the start, where some gradients vanish."""
    start = flatten(CASES[name][1])
    return (start + 0.3 * np.random.default_rng(1).standard_normal(start.shape)).astype(np.float32)


def gradients(name: str) -> NDArray[np.float64]:
    """Return every record's gradient by autograd, one by one, in float64; (n, d)."""
    _, model, records = CASES[name]
    twin = copy.deepcopy(model).double()
    twin.load_state_dict(unflatten(torch.from_numpy(parameters_of(name)).double(), twin))
    rows = []
    for i in range(N):
        twin.zero_grad()
        reference(name, twin, records.take(np.array([i]))).backward()
        rows.append(torch.cat([own.grad.reshape(-1) for own in twin.parameters()]).numpy())
    return np.array(rows)


@pytest.mark.parametrize("name", CASES)
def test_the_clipped_sum_is_that_of_autograd_one_by_one(name: str) -> None:
    """In float64 to rounding. R lies between the norms, so that some are clipped and some are not."""
    expected = gradients(name)
    norms = np.linalg.norm(expected, axis=1)
    bound = float(np.median(norms))
    clipped = (expected * np.minimum(1.0, bound / np.maximum(norms, 1e-30))[:, None]).sum(axis=0)
    engine = engine_of(name, dtype=torch.float64)
    (found,) = engine.clipped_sums(parameters_of(name), [CASES[name][2]], RecordClip(bound))
    assert np.linalg.norm(found - clipped) <= 1e-9 * np.linalg.norm(clipped)
    assert engine.path is {"own": Path.VMAP, "own, branching": Path.ONE_BY_ONE}.get(name, Path.ONE_PASS)
    np.testing.assert_allclose(
        engine.gradient_sum(parameters_of(name), CASES[name][2]), expected.sum(axis=0), rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("name", CASES)
def test_a_record_moves_the_sum_by_at_most_the_bound(name: str) -> None:
    """In float32, as clients train: ||S(A + x) - S(A)|| <= R (1 + 1e-4), and bit by bit the same beside others."""
    _, _, records = CASES[name]
    engine, at = engine_of(name), parameters_of(name)
    assert engine.passes.is_bit_exact
    for bound in (1e-3, 0.5):
        (whole,) = engine.clipped_sums(at, [records], RecordClip(bound))
        for left_out in range(N):
            rest = records.take(np.delete(np.arange(N), left_out))
            (without,) = engine.clipped_sums(at, [rest], RecordClip(bound))
            assert np.linalg.norm(whole - without) <= bound * (1 + 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_record_without_a_finite_gradient_adds_zero(name: str) -> None:
    """Whatever the loss: its client's other records count as if it were not there."""
    _, _, records = CASES[name]
    features = records.features.copy()
    features[4] = np.nan
    engine, at, clip = engine_of(name), parameters_of(name), RecordClip(0.5)
    (found,) = engine.clipped_sums(at, [Records(features, records.labels)], clip)
    (without,) = engine.clipped_sums(at, [records.take(np.delete(np.arange(N), 4))], clip)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, without, atol=1e-7)


@pytest.mark.parametrize("loss", [weighted, refusing, overflowing])
def test_a_record_on_which_an_own_loss_fails_adds_zero_and_takes_no_other_along(loss: Any) -> None:
    """By raising in PyTorch or in Python, or by a number that is not finite."""
    labels = CLASSES.copy()
    labels[4] = 7
    engine = RecordEngine(Net(4, 2), torch.zeros(4), loss=loss_of(loss), device="cpu")
    at, clip = parameters_of("own"), RecordClip(0.5)
    (found,) = engine.clipped_sums(at, [Records(ROWS, labels)], clip)
    (without,) = engine.clipped_sums(at, [Records(ROWS, labels).take(np.delete(np.arange(N), 4))], clip)
    assert np.linalg.norm(without) > 0
    np.testing.assert_array_equal(found, without)


def test_an_error_of_an_own_loss_is_named_without_its_text() -> None:
    """Where nothing is private, and in local training, the client has no update; no traceback shows the record."""
    engine = RecordEngine(Net(4, 2), torch.zeros(4), loss=loss_of(refusing), device="cpu")
    at, records = parameters_of("own"), Records(ROWS, CLASSES * 7)
    for failing in (
        lambda: engine.clipped_sums(at, [records], RecordClip(math.inf)),
        lambda: engine.gradient_sum(at, records),
    ):
        with pytest.raises(ModelRecordError, match="the loss 'refusing', raised LookupError on some record") as caught:
            failing()
        assert "sekret" not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["mse", "tokens", "binary", "logits"])
def test_a_stack_of_models_has_the_gradients_of_the_loop(name: str) -> None:
    engine = engine_of(name, dtype=torch.float64)
    assert can_stack(engine)
    models = 0.3 * np.random.default_rng(3).standard_normal((2, engine.dim))
    clients = [CASES[name][2], CASES[name][2].take(np.arange(4))]
    stack, loop, clip = ModelStack(engine), ModelByModel(engine), RecordClip(0.3)
    np.testing.assert_allclose(stack.gradient_sums(models, clients), loop.gradient_sums(models, clients), atol=1e-12)
    np.testing.assert_allclose(
        stack.clipped_sums(models, clients, clip), loop.clipped_sums(models, clients, clip), atol=1e-12
    )


@pytest.mark.parametrize(
    ("loss", "labels", "n_outputs", "error", "why"),
    [
        ("cross-entropy", CLASSES + 1, 2, RecordRangeError, r"x: expected a label in \[0, 1\] in row 1, found one out"),
        (
            "cross-entropy",
            VALUES[:, 0],
            2,
            TargetError,
            "x: labels: expected int64 for the loss 'cross-entropy', found",
        ),
        ("binary", CLASSES * 2, 1, RecordRangeError, r"expected a label in \[0, 1\] in row 1"),
        ("multi-label", VALUES, 2, TargetError, "expected 0 or 1 in row 0, found another value"),
        ("multi-label", VALUES[:, :1], 2, TargetError, r"expected shape \(n, 2\) for the loss 'multi-label', found"),
        ("mse", CLASSES, 1, TargetError, "expected float32 for the loss 'mse', found int64"),
        ("mse", np.where(VALUES[5] == VALUES, np.nan, VALUES).astype(np.float32), 2, TargetError, "numbers in row 5"),
        ("huber", VALUES, 3, TargetError, "expected 3 a record, as many as the model's outputs, found 2"),
    ],
)
def test_labels_that_mean_nothing_to_the_loss_are_refused_and_not_shown(
    loss: str, labels: NDArray[Any], n_outputs: int, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        require_range(Net(4, n_outputs), {"x": Records(ROWS, labels)}, LOSSES[loss])


def test_tokens_beyond_the_outputs_are_refused() -> None:
    require_range(Net(4, 5), {"x": Records(PLACES, TOKENS)}, LOSSES["token-cross-entropy"])
    with pytest.raises(RecordRangeError, match=r"expected a label in \[0, 3\] in row"):
        require_range(Net(4, 4), {"x": Records(PLACES, TOKENS)}, LOSSES["token-cross-entropy"])


@pytest.mark.parametrize(
    ("loss", "n_outputs", "why"), [("cross-entropy", 1, "of two classes or more"), ("binary", 2, "a single logit")]
)
def test_outputs_that_the_loss_does_not_read_are_refused(loss: str, n_outputs: int, why: str) -> None:
    with pytest.raises(ModelInputError, match=why):
        RecordEngine(Net(4, n_outputs), torch.zeros(4), loss=LOSSES[loss], device="cpu")


def test_losses_by_name_path_and_function() -> None:
    assert loss_of("mse") is LOSSES["mse"]
    assert (own := loss_of(f"{__name__}:weighted")).name == f"{__name__}:weighted"
    assert isinstance(own, Loss)
    assert loss_of(weighted).name == "weighted"
    with pytest.raises(UnknownNameError, match="unknown loss 'l2', expected one of cross-entropy, binary"):
        loss_of("l2")
    with pytest.raises(ArgumentError, match=r"takes \(model, record\) and gives a number"):
        loss_of(f"{__name__}:Net")
    with pytest.raises(ArgumentError, match=r"a function of \(model, record\), found a int"):
        loss_of(3)


def test_a_loss_that_gives_no_number_is_refused() -> None:
    def each_output(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
        found: Tensor = model(record[0])
        return found

    with pytest.raises(ModelInputError, match=r"loss 'each_output': expected a tensor of one number for a record"):
        RecordEngine(Net(4, 2), torch.zeros(4), loss=loss_of(each_output), device="cpu")
