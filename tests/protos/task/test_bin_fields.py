"""Records in bins as a field of a task: what it comes to, what does not go with it, and what stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from precad.protos.task.task import Task
from tests.harness.harness import small_task

T = 4
VALUES: dict[str, Any] = {
    name: value
    for name, value in json.loads(small_task().canonical()).items()
    if name not in ("record_rate", "lost_rounds")
}


def binned(**changes: Any) -> Task:
    return Task(**{**VALUES, "record_bins": T, **changes})


def test_the_rate_is_what_the_bins_come_to() -> None:
    """Given or not: the same task. W is the expected number of records of a round."""
    task = binned()
    assert task.record_rate == 1 / T
    assert task.divisor == sum(task.clients.values()) / T
    assert binned(record_rate=1 / T).digest() == task.digest()
    assert Task(**json.loads(task.canonical())).digest() == task.digest()
    assert Task(**task.model_dump()).digest() == task.digest()


def test_a_task_without_bins_has_no_word_of_them() -> None:
    assert "record_bins" not in small_task().canonical()
    assert '"record_bins":4' in binned().canonical()
    with pytest.raises(ValidationError, match="record_rate"):
        Task(**VALUES)


@pytest.mark.parametrize("bins", [0, 1, -3, 10_001, 4.0, "4", True])
def test_bins_are_a_whole_number_of_rounds(bins: Any) -> None:
    with pytest.raises(ValidationError, match="record_bins"):
        binned(record_bins=bins)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client_rate": 0.9}, "client_rate: expected 1 with record_bins, .*, found 0.9"),
        ({"record_rate": 0.3}, "record_rate: expected none with record_bins = 4, which makes it 0.25, found 0.3"),
        ({"record_rates": {"alice": 0.1}}, "record_rates: expected none with record_bins, .*, found a value"),
        ({"records_per_person": 2}, "records_per_person: expected none with record_bins, .*, found a value"),
        (
            {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0},
            "evaluation_every: expected none with record_bins, .*, found a value",
        ),
        ({"audit_clients": ["alice"], "dim": 1000}, "audit_clients: expected none with record_bins, .*"),
        (
            {"mode": "proved", "round_period_s": 500.0},
            "round_period_s: expected none with record_bins, .*, found a value",
        ),
        ({"algorithm": "local-dp"}, "record_bins is of precad only, found algorithm 'local-dp'"),
        ({"algorithm": "user-dp-fedavg"}, "record_bins is of precad only, found algorithm 'user-dp-fedavg'"),
        ({"algorithm": "fedavg", "noise_multiplier": 0.0}, "record_bins is of precad only, found algorithm 'fedavg'"),
    ],
)
def test_what_does_not_go_with_bins_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    values = {name: value for name, value in VALUES.items() if name not in ("gate", "batches_ahead")}
    with pytest.raises(ValidationError, match=said):
        Task(**{**values, "record_bins": T, "client_clip": 4.0, **changes})


@pytest.mark.parametrize("mode", ["masked", "shares", "proved"])
def test_every_mode_has_bins(mode: str) -> None:
    values = {name: value for name, value in VALUES.items() if name not in ("gate", "batches_ahead")}
    task = Task(**{**values, "record_bins": T, "mode": mode, "accept_weak_wire_form": mode == "shares"})
    assert task.record_bins == T


def test_a_target_is_met_by_the_figure_of_whole_epochs() -> None:
    from precad.dp.accountants.balls_in_bins import BallsInBins
    from precad.dp.accountants.pld import effective_noise_multiplier

    values = {name: value for name, value in VALUES.items() if name != "noise_multiplier"}
    task = Task(**{**values, "record_bins": T, "rounds": T + 1, "target_epsilon": 2.0})

    def epsilon(noise: float) -> float:
        sigma = effective_noise_multiplier(noise, task.record_clip, task.dim, task.frac_bits)
        return BallsInBins(bins=T, noise_multiplier=sigma).epsilon(2 * T, task.delta)

    assert epsilon(task.noise_multiplier) <= 2.0 < epsilon(task.noise_multiplier - 1e-3)
