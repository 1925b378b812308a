"""Turns and bands of a task: what is refused, what the parties agree on, and what the rounds of a client cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, View
from precad.dp.ledgers.ledger import Ledger
from precad.dp.task_privacy import budgets_of, task_cost, task_privacy
from precad.protos.task.task import Task
from tests.harness.harness import small_task

CLIENTS = tuple(f"c{i}" for i in range(30))


def taking_turns(**changes: Any) -> Task:
    """Thirty clients, ten turns, T = 200."""
    fields = {"algorithm": "user-dp-fedavg", "rounds": 200, "min_separation": 10, "noise_bands": 10}
    return small_task(CLIENTS, **{**fields, "noise_multiplier": 8.0, **changes})


def norm_of(task: Task) -> float:
    return math.sqrt(sum((c / 2**16) ** 2 for c in task.strategy.coefficients))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"algorithm": "precad"},
            "min_separation is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian only",
        ),
        (
            {"algorithm": "local-dp", "noise_bands": 1},
            "min_separation is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian only",
        ),
        (
            {"algorithm": "precad", "min_separation": 1, "noise_bands": 2},
            "noise_bands is of user-dp-fedavg and tsgd-gaussian only",
        ),
        ({"min_separation": 31}, "min_separation: expected at most the 30 enrolled, found 31"),
        ({"min_separation": 9}, "noise_bands: expected at most min_separation, 9, found 10"),
        ({"noise_bands": 65, "min_separation": 30}, "less than or equal to 64"),
        ({"min_separation": 0}, "greater than or equal to 1"),
        ({"epsilon_budget_client": 3.0}, "epsilon_budget_client: expected none with min_separation"),
        ({"update_clipping": "private-quantile"}, "noise_bands: expected 1 with update_clipping"),
        ({"noise_multiplier": 257.0}, "expected at most 2\\^24 with noise_bands"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        taking_turns(**changes)


def test_tasks_without_turns_keep_their_text_and_others_say_theirs() -> None:
    plain = taking_turns(min_separation=1, noise_bands=1)
    assert not {"min_separation", "noise_bands"} & plain.carried_fields.keys()
    found = taking_turns()
    assert (found.carried_fields["min_separation"], found.carried_fields["noise_bands"]) == ("10", "10")
    assert len({task.digest() for task in (plain, found, taking_turns(noise_bands=9))}) == 3


def test_a_round_is_divided_by_the_clients_of_one_turn() -> None:
    assert taking_turns(client_rate=0.5).divisor == 0.5 * 30 / 10
    assert taking_turns(client_rate=0.5, min_separation=1, noise_bands=1).divisor == 15.0


@pytest.mark.parametrize(("rounds", "turns"), [(200, 20), (201, 21), (9, 1)])
def test_a_client_pays_for_its_turns_alone(rounds: int, turns: int) -> None:
    """mu = sqrt(k) ||c|| / sigma in both views; against discarded draws the turns of all that can be drawn."""
    task = taking_turns(rounds=rounds)
    assert task.rounds_of_a_client == turns
    cost, gaussian = task_cost(task), PldAccountant()
    for view in View:
        one = task_privacy(task).epsilon(view, turns, task.delta)
        exact = gaussian.epsilon(SampledGaussian(1.0, 8.0 / norm_of(task) / math.sqrt(turns)), 1, task.delta)
        assert one == pytest.approx(exact, rel=1e-9)
        most = math.ceil(task.most_draws / 10)
        assert cost.most_of_a_client == most
        assert cost.view_if_discarded(view) == task_privacy(task).epsilon(view, most, task.delta)


def test_independent_noise_with_turns_keeps_what_two_servers_add() -> None:
    task = taking_turns(noise_bands=1)
    events = task_privacy(task).events
    assert [events[view] for view in View] == [SampledGaussian(1.0, 8.0), SampledGaussian(1.0, math.sqrt(2) * 8.0)]
    assert not task_privacy(task).every_round


def test_a_target_takes_the_least_noise_for_a_clients_turns() -> None:
    fields = {name: value for name, value in taking_turns().model_dump().items() if name != "noise_multiplier"}
    task = Task(**fields, target_epsilon=2.0)
    assert task_privacy(task).epsilon(View.ONE_SERVER, 20, task.delta) <= 2.0
    less = task.model_copy(update={"noise_multiplier": task.noise_multiplier * 0.998})
    assert task_privacy(less).epsilon(View.ONE_SERVER, 20, task.delta) > 2.0
    independent = Task(**{**fields, "noise_bands": 1}, target_epsilon=2.0)
    assert task.noise_multiplier / independent.noise_multiplier == pytest.approx(norm_of(task), rel=2e-3)


def test_a_ledger_counts_turns_against_who_discards_draws() -> None:
    """Count what was charged where nobody discards, and the turns of all draws where somebody may."""
    task = taking_turns(epsilon_budget_one_server=50.0)
    privacy = task_privacy(task)
    ledger = Ledger(
        None,
        events=privacy.events,
        delta=task.delta,
        budgets=budgets_of(task),
        unit=privacy.unit,
        most_rounds=task.most_draws,
        separation=task.min_separation,
    )
    for t in range(3):
        ledger.charge(10 * t, ["c0"])
    assert ledger.most_rounds_of_a_client == math.ceil(task.most_draws / 10)
    assert ledger.statement(View.ONE_SERVER).epsilon == privacy.epsilon(View.ONE_SERVER, 3, task.delta)
    found = ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon
    assert found == privacy.epsilon(View.ONE_SERVER, math.ceil(task.most_draws / 10), task.delta)


def test_an_honest_sum_of_correlated_noise_is_within_the_bound() -> None:
    """A hundred rounds of both servers' recursions, with nobody in them, and not far below it."""
    task, random = taking_turns(rounds=100, noise_multiplier=1.0, dim=4000), np.random.default_rng(8)
    past: list[list[np.ndarray]] = [[], []]
    for _ in range(100):
        total = np.zeros(task.dim)
        for outputs in past:
            weights = task.strategy.coefficients[1 : 1 + len(outputs)]
            drawn = random.normal(0, task.noise_std_on_grid, task.dim)
            drawn -= sum((c / 2**16 * n for c, n in zip(weights, outputs, strict=True)), np.zeros(task.dim))
            outputs[:] = [drawn, *outputs][:9]
            total += drawn
        assert np.linalg.norm(total) <= task.sum_bound(0)
    assert np.linalg.norm(total) >= 0.75 * task.sum_bound(0)
