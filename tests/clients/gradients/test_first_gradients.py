"""Records of which none has a finite gradient are refused before the first round; one that has is enough.

What is uploaded does not depend on this: a gradient that is not finite adds zero, as tests of clipping show.
"""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from precad.clients.errors import NoGradientError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.first_gradients import require_some_gradient
from precad.clients.models.losses import CROSS_ENTROPY, Loss, OwnLoss
from precad.clients.records import Records
from precad.clients.training.evaluation import is_finite

N = 80
"""More than one pass takes."""


class LogOf(nn.Linear):
    """Takes the logarithm of features, which is NaN below zero, as many a home-made model does."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 2)."""
        return super().forward(torch.log(x))


class Raising(nn.Linear):
    """Raises on a record with a negative feature."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 2)."""
        if bool((x < 0).any()):
            raise ValueError("secret 4711")
        return super().forward(x)


def table(*good: int, n: int = N) -> Records:
    """Records of three numbers: below zero, but for the rows `good`."""
    features = np.full((n, 3), -1.5, dtype=np.float32)
    features[list(good)] = 2.5
    return Records(features, np.arange(n) % 2)


def own_loss(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """NaN for all: 0 / 0."""
    return functional.cross_entropy(model(record[0]), record[1]) * torch.tensor(0.0) / torch.tensor(0.0)


def engine_of(model: nn.Module, loss: Loss = CROSS_ENTROPY) -> RecordEngine:
    return RecordEngine(model, torch.ones(3), loss=loss, device="cpu")


@pytest.mark.parametrize("good", [0, 40, N - 1])
def test_one_record_with_a_finite_gradient_is_enough(good: int) -> None:
    """Wherever it is: padding, whose features are zero and whose logarithm is not finite, counts for nobody."""
    require_some_gradient(engine_of(LogOf(3, 2)), {"records of a": table(good)})


def test_none_is_refused_in_one_line_that_tells_no_value() -> None:
    """The second client's field is named; the first is well."""
    with pytest.raises(NoGradientError) as refused:
        require_some_gradient(engine_of(LogOf(3, 2)), {"records of a": table(3), "records of b": table()})
    said = str(refused.value)
    assert said.startswith("records of b: expected a record whose loss and gradient are finite")
    assert "1.5" not in said
    assert "\n" not in said


def test_a_loss_that_is_nan_for_all_is_refused_by_name() -> None:
    """A named loss's records would have passed."""
    require_some_gradient(engine_of(nn.Linear(3, 2)), {"records of a": table()})
    with pytest.raises(NoGradientError, match="the loss 'mine' gives NaN"):
        require_some_gradient(engine_of(nn.Linear(3, 2), OwnLoss(own_loss, "mine")), {"records of a": table()})


def test_first_records_of_many_clients_share_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 300 clients have a first record without a finite gradient: these alone are looked at one by one."""
    engine, shapes = engine_of(LogOf(3, 2)), []
    assert engine.passes.n_tile >= 30
    taken = LogOf.forward
    monkeypatch.setattr(LogOf, "forward", lambda self, x: shapes.append(x.shape) or taken(self, x))
    own = {f"records of {k}": table(0) for k in range(298)} | {f"records of {k}": table(79) for k in (298, 299)}
    require_some_gradient(engine, own)
    assert 0 < len(shapes) <= 300 / engine.passes.n_tile + 1 + 2 * (N / engine.passes.n_tile + 1)


def test_first_records_of_many_clients_are_copied_some_at_a_time() -> None:
    """Never all of 4,000 clients: less than they take together. The last one's is looked at, too."""
    wide = Records(np.ones((1, 4096), np.float32), np.zeros(1, np.int64))
    engine = RecordEngine(nn.Linear(4096, 2), torch.zeros(4096), device="cpu")
    own = {f"records of {k}": wide for k in range(4000)}
    tracemalloc.start()
    try:
        require_some_gradient(engine, own)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4000 * wide.features.nbytes
    bad = Records(np.full((1, 4096), np.nan, np.float32), np.zeros(1, np.int64))
    with pytest.raises(NoGradientError, match="records of 3999"):
        require_some_gradient(engine, own | {"records of 3999": bad})


def test_padding_does_not_stand_in_for_a_record() -> None:
    """Finite for zeros, which fill a pass up, and for no record."""

    class Root(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.sqrt(x.abs() * x))  # NaN below zero, 0 at zero

    with pytest.raises(NoGradientError):
        require_some_gradient(engine_of(Root(3, 2)), {"records of a": table(n=5)})


def test_clients_without_records_pass() -> None:
    """A client may hold none, and that is another refusal's matter."""
    require_some_gradient(engine_of(LogOf(3, 2)), {"records of a": table(n=0)})


def test_a_model_that_raises_on_every_record_is_refused_without_its_text() -> None:
    """Its passes take one record each. One on which it raises adds zero in rounds, so one that it takes is enough."""
    engine = engine_of(Raising(3, 2))
    assert engine.passes.n_tile == 1
    require_some_gradient(engine, {"records of a": table(7)})
    with pytest.raises(NoGradientError) as refused:
        require_some_gradient(engine, {"records of a": table()})
    assert "4711" not in str(refused.value)


def test_a_pass_of_many_that_raises_is_left_to_the_round() -> None:
    """It says nothing of each record. A negative token is one that the range check refuses before."""
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    engine = RecordEngine(model, torch.zeros(3, dtype=torch.int64), device="cpu")
    assert engine.passes.n_tile > 1
    require_some_gradient(engine, {"records of a": Records(np.full((N, 3), 9), np.arange(N) % 2)})


def test_a_model_whose_loss_is_nan_for_all_is_not_finite() -> None:
    """Outputs are finite; the loss is what clients learn by. One record with a finite loss is enough."""
    model, parameters = nn.Linear(3, 2), np.ones(8, dtype=np.float32)

    def for_some(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
        return torch.where(record[0].sum() > 0, functional.cross_entropy(model(record[0]), record[1]), math.nan)

    some = OwnLoss(for_some, "some")
    assert is_finite(parameters, model, table(), CROSS_ENTROPY)
    assert is_finite(parameters, model, table())
    assert is_finite(parameters, model, table(5), some)
    assert not is_finite(parameters, model, table(), some)
    assert not is_finite(parameters * np.nan, model, table(5), some)
    assert np.array_equal(parameters, np.ones(8))
