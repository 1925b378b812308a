"""A client's answer to an evaluation: counts of its held-out records, within the ball, whatever a record does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from precad.clients.errors import ArgumentError
from precad.clients.models import networks
from precad.clients.models.learning import Learning
from precad.clients.models.losses import LOSSES, loss_of
from precad.clients.records import Records, digits
from precad.clients.training.conduct import Honest
from precad.clients.training.held_out import HeldOut, right_and_losses
from precad.dp.queries.evaluations import EvaluationEncoding
from precad.mpc import fixed_point
from precad.protos.task.task import Task
from tests.harness.harness import small_task

CPU = torch.device("cpu")
CLASSES, WIDTH = 3, 4


def task_of(**changes: Any) -> Task:
    """Return one of a linear model, evaluated after every round."""
    model = {"model": "torch.nn:Linear", "model_arguments": {"in_features": WIDTH, "out_features": CLASSES}}
    fields = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0, "dim": WIDTH * CLASSES + CLASSES}
    return small_task(**{**model, **fields, **changes})


def some(n: int, seed: int = 0) -> Records:
    """Return made-up records of three classes."""
    rng = np.random.default_rng(seed)
    return Records(rng.normal(size=(n, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, n))


def held_out(task: Task, **records: Records) -> HeldOut:
    """Return that of honest clients."""
    return HeldOut(task=task, records=records, conducts=dict.fromkeys(records, Honest()), device="cpu")


def parameters(task: Task, seed: int = 3) -> Any:
    """Return a model (d,)."""
    return np.random.default_rng(seed).normal(size=task.dim).astype(np.float32)


def test_an_answer_is_what_the_whole_batch_says() -> None:
    """By PyTorch on all records at once, and the encoding's weights by hand."""
    task, own = task_of(evaluation_clip=1_000.0), some(50)
    assert task.evaluation_round is not None
    theta = parameters(task)
    model = networks.trained(networks.of_task(task), theta)
    with torch.no_grad():
        outputs, labels = model(torch.from_numpy(own.features)), torch.from_numpy(own.labels)
        right = int((outputs.argmax(dim=1) == labels).sum())
        loss = float(functional.cross_entropy(outputs, labels, reduction="none").clamp(max=4.0).sum())
    b, a, _ = EvaluationEncoding(loss_bound=4.0, frac_bits=task.evaluation_round.frac_bits).weights
    expected = [50 * b, a * (2 * right - 50), a * (2 * loss / 4.0 - 50)]
    assert held_out(task, alice=own).answer("alice", theta) == pytest.approx(expected, abs=1e-3)


def test_an_answer_is_cut_to_the_ball_and_encoded_within_it() -> None:
    """C lets six of 50 records count; the integers pass the servers' threshold."""
    task, own = task_of(evaluation_clip=6.0), some(50)
    one = task.evaluation_round
    assert one is not None
    found = held_out(task, alice=own)
    assert np.linalg.norm(found.answer("alice", parameters(task))) == pytest.approx(6.0, rel=1e-9)
    encoded = found.evaluate("alice", parameters(task))
    assert encoded.shape == (3,)
    assert sum(int(x) ** 2 for x in encoded) <= one.norm_bound.threshold
    assert np.linalg.norm(fixed_point.decode(encoded, one.frac_bits)) == pytest.approx(6.0, rel=1e-4)


def test_one_record_more_moves_an_answer_by_one_at_most() -> None:
    """Whatever the record is; the other records count as before, bit for bit."""
    task, own = task_of(evaluation_clip=1_000.0), some(20)
    theta = parameters(task)
    before = held_out(task, alice=own).answer("alice", theta)
    for value in (0.0, 1e30, np.inf, np.nan):
        more = Records(
            np.append(own.features, np.full((1, WIDTH), value, np.float32), axis=0), np.append(own.labels, 1)
        )
        after = held_out(task, alice=more).answer("alice", theta)
        assert np.linalg.norm(after - before) <= 1.0


def test_a_client_without_held_out_records_adds_nothing() -> None:
    task = task_of()
    assert not held_out(task, alice=some(0)).evaluate("alice", parameters(task)).any()


class Touchy(nn.Module):
    """A model that raises on some records."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.linear, self.error = nn.Linear(WIDTH, CLASSES), error

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Refuse a negative first feature."""
        if (features[:, 0] < 0).any():
            raise self.error("what a record holds")
        found: torch.Tensor = self.linear(features)
        return found


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_record_on_which_the_model_raises_counts_as_wrong(error: type[BaseException]) -> None:
    """With the largest loss, and without a word. An exit would end the client, and print what the record holds."""
    own = some(30)
    right, losses = right_and_losses(Touchy(error).eval(), own, LOSSES["cross-entropy"], CPU)
    is_refused = own.features[:, 0] < 0
    assert is_refused.any()
    assert not is_refused.all()
    assert not right[is_refused].any()
    assert np.isinf(losses[is_refused]).all()
    assert np.isfinite(losses[~is_refused]).all()


class Ragged(nn.Linear):
    """A model that gives some records outputs of another shape, which labels do not fit."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Give two rows where the first feature is negative."""
        found = super().forward(features)
        return torch.stack([found, found], dim=1) if (features[:, 0] < 0).any() else found


def test_a_record_whose_outputs_fit_no_label_counts_as_wrong() -> None:
    """Not as an error: the client would end, which tells of the record."""

    def squares(model: nn.Module, record: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (model(record[0]) ** 2).sum()

    own = some(20)
    odd = own.features[:, 0] < 0
    right, losses = right_and_losses(Ragged(WIDTH, CLASSES).eval(), own, loss_of(squares), CPU)
    assert not right[odd].any()
    assert np.isinf(losses[odd]).all()
    assert np.isfinite(losses[~odd]).all()
    assert 0 < odd.sum() < 20


def test_outputs_that_are_not_finite_count_as_wrong() -> None:
    """Class 0 is where the largest of them would be looked for."""
    broken = nn.Linear(WIDTH, CLASSES)
    nn.init.constant_(broken.bias, np.nan)
    right, losses = right_and_losses(
        broken.eval(), Records(some(3).features, np.zeros(3, np.int64)), LOSSES["cross-entropy"], CPU
    )
    assert not right.any()
    assert np.isinf(losses).all()


@pytest.mark.parametrize(
    ("loss", "labels", "shares"),
    [
        ("multi-label", np.array([[1, 1, 1], [0, 0, 0]], np.float32), [2 / 3, 1 / 3]),
        ("mse", np.array([[1, 1, 1], [0, 0, 0]], np.float32), [0.0, 0.0]),
    ],
)
def test_shares_of_labels_and_none_of_numbers(loss: str, labels: Any, shares: list[float]) -> None:
    """The model says 1, 1, 0 of every record."""
    fixed = nn.Linear(WIDTH, 3)
    with torch.no_grad():
        fixed.weight.zero_()
        fixed.bias.copy_(torch.tensor([2.0, 1.0, -1.0]))
    right, _ = right_and_losses(fixed.eval(), Records(some(2).features, labels), LOSSES[loss], CPU)
    assert right == pytest.approx(shares)


def test_a_loss_of_the_users_own_gets_the_model() -> None:
    def own(model: nn.Module, record: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (model(record[0]) ** 2).sum()

    records, model = some(5), nn.Linear(WIDTH, CLASSES).eval()
    _, losses = right_and_losses(model, records, loss_of(own), CPU)
    with torch.no_grad():
        expected = (model(torch.from_numpy(records.features)) ** 2).sum(dim=1).numpy()
    assert losses == pytest.approx(expected, rel=1e-5)


def test_images_go_through_as_in_training() -> None:
    """The convolutional model takes pixels of bytes; beside the accuracy of a batch."""
    from precad.clients.training.evaluation import accuracy

    split = digits(side=28)
    own, model = split.test.take(np.arange(40)), networks.build("cnn", seed=1)
    right, _ = right_and_losses(model.eval(), own, LOSSES["cross-entropy"], CPU)
    assert right.mean() == pytest.approx(accuracy(networks.flatten(model), "cnn", own))


def test_a_task_without_evaluations_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"task\.evaluation: expected 'clients', found 'none'"):
        HeldOut(task=small_task(), records={}, conducts={}, learning=Learning(lambda _: nn.Linear(1, 2)))
