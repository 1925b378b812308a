"""Errors of a user's model and metrics at evaluation: named by kind, and silent about what a record holds."""

from __future__ import annotations

import math
import traceback
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from precad.clients.errors import ArgumentError, ModelRecordError
from precad.clients.models.networks import flatten
from precad.clients.records import Records
from precad.clients.training import evaluation

RECORDS = Records(np.full((3, 2), 4321.0, dtype=np.float32), np.array([0, 1, 0]))


class Refusing(nn.Module):
    """Raises on large values, and says them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 2) -> (n, 2)."""
        if rows.max() > 1000:
            raise ValueError(f"sekret {rows}")
        found: Tensor = self.last(rows)
        return found


def leaking(outputs: Any, labels: Any) -> float:
    """A metric that says labels."""
    raise LookupError(f"sekret {labels}")


def worded(outputs: Any, labels: Any) -> Any:
    """A metric that gives no number, but a text with labels."""
    return f"sekret {labels}"


def shifting(outputs: Any, labels: Any) -> float:
    """A metric that works in place, as one does to save memory."""
    outputs -= outputs.max(axis=1, keepdims=True)
    labels += 1
    return 0.0


def test_a_metric_that_works_in_place_changes_no_record_and_no_other_metric() -> None:
    model, labels = nn.Linear(2, 2), RECORDS.labels.copy()
    seen: list[Any] = []
    wanted = {"own": shifting, "seen": lambda outputs, labels: seen.append((outputs, labels)) or 0.0}
    evaluation.measured(flatten(model), model, RECORDS, wanted)
    np.testing.assert_array_equal(RECORDS.labels, labels)
    np.testing.assert_array_equal(seen[0][1], labels)
    outputs = evaluation.outputs(flatten(model), model, RECORDS, evaluation.CPU)
    np.testing.assert_array_equal(seen[0][0], outputs)


@pytest.mark.parametrize(
    ("model", "metric", "error", "why"),
    [
        (nn.Linear(2, 2), leaking, ArgumentError, "metric 'own': expected a number, found LookupError raised"),
        (nn.Linear(2, 2), worded, ArgumentError, "metric 'own': expected a number, found a str"),
        (Refusing(), leaking, ModelRecordError, "^task.model: the model raised ValueError on some record"),
    ],
)
def test_an_error_at_evaluation_says_nothing_of_a_record(
    model: nn.Module, metric: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as caught:
        evaluation.measured(flatten(model), model, RECORDS, {"own": metric})
    shown = "".join(traceback.format_exception(caught.value))
    assert "sekret [" not in shown
    assert "4321" not in shown


def test_a_figure_that_is_no_number_is_left_out_of_files() -> None:
    """A precision of nothing is 0/0, and JSON has no such number. A server hears of it all the same."""
    model = nn.Linear(2, 2)
    wanted: dict[str, Any] = {
        "nan": lambda outputs, labels: math.nan,
        "inf": lambda outputs, labels: math.inf,
        "own": lambda outputs, labels: np.float32(0.25),
    }
    found = evaluation.measured(flatten(model), model, RECORDS, wanted)
    assert list(found) == list(wanted)
    assert evaluation.finite(found) == {"own": 0.25}
