"""Probabilities are told from logits: losses by name refuse them, and accuracy asks whether they exceed one half."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from precad.clients.errors import ModelInputError
from precad.clients.models import networks
from precad.clients.models.losses import LOSSES, OwnLoss
from precad.clients.models.metrics import METRICS
from precad.clients.models.output_range import Scale, scale_of
from precad.clients.records.records import Records
from precad.clients.training import evaluation
from precad.clients.training.held_out import right_and_losses

ROW, TEXT = torch.zeros(3), torch.zeros(6, dtype=torch.int64)


def head(*last: nn.Module, n: int = 1) -> nn.Module:
    """Return a network of rows of three numbers, whose parameters all start at zero."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, n), *last)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def reader(*last: nn.Module) -> nn.Module:
    """Return a network of texts of six tokens, with one output."""
    return nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(24, 1), *last)


@pytest.mark.parametrize(
    ("model", "example", "expected"),
    [
        (head(), ROW, Scale.LOGITS),
        (head(nn.Tanh()), ROW, Scale.LOGITS),
        (head(nn.ReLU()), ROW, Scale.LOGITS),
        (head(nn.LogSoftmax(1), n=3), ROW, Scale.LOGITS),
        (head(nn.Sigmoid()), ROW, Scale.PROBABILITIES),
        (head(nn.Sigmoid(), nn.Flatten(0)), ROW, Scale.PROBABILITIES),
        (head(nn.Sigmoid(), n=3), ROW, Scale.PROBABILITIES),
        (head(nn.Softmax(1), n=3), ROW, Scale.DISTRIBUTION),
        (reader(), TEXT, Scale.LOGITS),
        (reader(nn.Sigmoid()), TEXT, Scale.PROBABILITIES),
    ],
)
def test_a_model_gives_probabilities_if_it_does_whatever_its_parameters(
    model: nn.Module, example: Tensor, expected: Scale
) -> None:
    before = [one.clone() for one in model.parameters()]
    assert scale_of(model.train(), example) is expected
    assert model.training
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_logits_that_lie_between_zero_and_one_by_chance_are_logits() -> None:
    """One of 300 linear models and small networks taken for probabilities would fail."""
    for seed in range(300):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 1 + seed % 5), (nn.ReLU, nn.Tanh, nn.Sigmoid)[seed % 3]())
        assert scale_of(nn.Sequential(*model, nn.Linear(1 + seed % 5, 1)), ROW) is Scale.LOGITS


@pytest.mark.parametrize(
    ("loss", "right", "wrong"),
    [
        ("binary", head(), head(nn.Sigmoid())),
        ("multi-label", head(n=3), head(nn.Sigmoid(), n=3)),
        ("cross-entropy", head(nn.Sigmoid(), n=3), head(nn.Softmax(1), n=3)),
        ("token-cross-entropy", head(nn.Unflatten(1, (2, 2)), n=4), head(nn.Unflatten(1, (2, 2)), nn.Softmax(2), n=4)),
    ],
)
def test_losses_by_name_refuse_probabilities(loss: str, right: nn.Module, wrong: nn.Module) -> None:
    networks.require_fit(right, (3,), is_text=False, loss=LOSSES[loss])
    with pytest.raises(
        ModelInputError, match=f"expected logits for the loss '{loss}', found probabilities: leave out the model's last"
    ):
        networks.require_fit(wrong, (3,), is_text=False, loss=LOSSES[loss])
    networks.require_fit(wrong, (3,), is_text=False, loss=LOSSES["mse"])  # a value in [0, 1] may be what is wanted


def cross_entropy_of_probabilities(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    features, label = record
    return functional.binary_cross_entropy(model(features)[:, 0], label.float())


def test_the_accuracy_of_probabilities_is_asked_at_one_half() -> None:
    rng = np.random.default_rng(5)
    records = Records(rng.standard_normal((50, 3)).astype(np.float32), rng.integers(0, 2, 50))
    model = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())
    parameters = networks.flatten(model)
    with torch.no_grad():
        said = model[0](torch.from_numpy(records.features))[:, 0].numpy() > 0  # the logit before the sigmoid
    expected = np.mean(said == records.labels)
    assert 0 < said.mean() < 1
    assert evaluation.accuracy(parameters, model, records) == expected
    assert evaluation.measured(parameters, model, records, {"own name": METRICS["accuracy"]}) == {"own name": expected}
    loss = OwnLoss(cross_entropy_of_probabilities, "own")
    right, _ = right_and_losses(model, records, loss, torch.device("cpu"))
    assert right.mean() == expected


def test_confidences_of_probabilities_are_these() -> None:
    records = Records(np.random.default_rng(5).standard_normal((9, 3)).astype(np.float32), np.zeros(9, dtype=np.int64))
    for last, n, wanted in ((nn.Sigmoid(), 1, torch.sigmoid), (nn.Softmax(1), 3, lambda z: z.softmax(dim=1))):
        model = nn.Sequential(nn.Linear(3, n), last)
        with torch.no_grad():
            expected = wanted(model[0](torch.from_numpy(records.features))).numpy()
        found = evaluation.confidences(networks.flatten(model), model, records)
        assert np.allclose(found.sum(axis=1), 1)
        assert np.allclose(found[:, -n:], expected, atol=1e-6)
