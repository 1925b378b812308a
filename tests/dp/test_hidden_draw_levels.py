"""The level of a whole client whose draws are hidden: its figures by two ways, and when it is not claimed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.group_mixture import Direction, loss_distribution
from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, TwoStageSampledGaussian, Unit, View
from precad.dp.accountants.task_cost import Evaluations, Level, TaskCost
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.ledgers.ledger import Ledger

HIDDEN = SampledGaussian(0.1, math.sqrt(2))
VISIBLE = TwoStageSampledGaussian(0.1, 1.0, math.sqrt(2))
EVENTS = {View.ONE_SERVER: SampledGaussian(0.05, 1.0), View.CLIENTS_ONLY: SampledGaussian(0.05, math.sqrt(2))}
LEVELS = {Level.CLIENT: VISIBLE, Level.HIDDEN_CLIENT: HIDDEN}


@pytest.mark.parametrize(
    ("sigma", "rounds", "visible", "hidden"),
    [(1.0, 10, 5.24, 1.44), (1.0, 100, 14.20, 3.87), (1.0, 1000, 58.1, 13.8), (4.0, 100, 2.59, 0.66)],
)
def test_figures_of_the_specification_by_two_accountants(
    sigma: float, rounds: int, visible: float, hidden: float
) -> None:
    """The ledger's accountant, and the exact mixture of one unit on a grid of its own, agree to 1e-3."""
    multiplier = math.sqrt(2) * sigma
    cost = TaskCost(
        events=EVENTS,
        delta=1e-5,
        every_round={
            Level.CLIENT: replace(VISIBLE, noise_multiplier=multiplier),
            Level.HIDDEN_CLIENT: replace(HIDDEN, noise_multiplier=multiplier),
        },
    )
    found = cost.of_level(Level.HIDDEN_CLIENT, rounds)
    assert cost.of_level(Level.CLIENT, rounds) == pytest.approx(visible, rel=5e-3)
    assert found == pytest.approx(hidden, abs=0.06 if hidden > 10 else 0.006)
    second = max(loss_distribution(1, 0.1, multiplier, rounds, d).epsilon(1e-5) for d in Direction)
    assert found == pytest.approx(second, rel=1e-3)


def test_a_budget_that_depends_on_draws_leaves_nothing_hidden() -> None:
    """When the task ends then tells who was drawn: everybody is counted as drawn, as for the level that is seen."""
    cost = TaskCost(events=EVENTS, delta=1e-5, every_round=LEVELS, budgets={View.ONE_SERVER: 8.0}, most_rounds=50)
    drawn = PldAccountant().epsilon(SampledGaussian(1.0, math.sqrt(2)), 20, 1e-5)
    assert cost.of_level(Level.HIDDEN_CLIENT, 20) == drawn
    assert cost.level_if_discarded(Level.HIDDEN_CLIENT) < drawn


def told_by_the_end(most: int, epsilon: float) -> float:
    """Return delta of a client that the end of a task of `most` rounds tells: it ends once the client was drawn.

    The release of that round has its update for certain, and all others have nothing of it.
    """
    return (1 - 0.9**most) * delta_from_mu(epsilon, 1 / math.sqrt(2))


@pytest.mark.parametrize("n_evaluations", [0, 2])
def test_draws_that_the_end_of_a_task_tells_are_not_hidden(n_evaluations: int) -> None:
    """A budget of one round of a client ends the task at its draw: the exact law of that is the least to be stated."""
    one_round = PldAccountant().epsilon(EVENTS[View.ONE_SERVER], 1, 1e-5)
    evaluations = Evaluations(events=EVENTS, levels=LEVELS, most=n_evaluations) if n_evaluations else None
    cost = TaskCost(
        events=EVENTS,
        delta=1e-5,
        every_round=LEVELS,
        most_rounds=10,
        evaluations=evaluations,
        budgets={View.ONE_SERVER: one_round * 1.01} if not evaluations else {View.ONE_SERVER: 3 * one_round},
    )
    stated = cost.level_if_discarded(Level.HIDDEN_CLIENT)
    assert told_by_the_end(10, stated) <= 1e-5
    assert stated == cost.level_if_discarded(Level.CLIENT)
    assert told_by_the_end(10, PldAccountant().epsilon(HIDDEN, 10 + n_evaluations, 1e-5)) > 1e-4


def test_a_ledger_states_it_of_a_client_and_a_later_one_reads_it(tmp_path: Path) -> None:
    """Whoever counts the task afterwards counts the client as drawn in every round, and never as a group of records."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, events=EVENTS, delta=1e-5, every_round=LEVELS, most_rounds=10) as ledger:
        for t in range(4):
            ledger.charge(t, ["alice"])
        stated = ledger.task_statement(Level.HIDDEN_CLIENT)
        assert (stated.unit, stated.view) == (Unit.CLIENT, View.CLIENTS_ONLY)
        assert stated.epsilon == pytest.approx(PldAccountant().epsilon(HIDDEN, 4, 1e-5))
        at_most = ledger.task_statement(Level.HIDDEN_CLIENT, Conduct.MAY_DISCARD)
        assert at_most.epsilon == pytest.approx(PldAccountant().epsilon(HIDDEN, 10, 1e-5))
    (task,) = earlier_tasks([(path, 10)])
    for found in (task, task.of_groups(3)):
        assert found.levels["hidden_client"] == SampledGaussian(1.0, math.sqrt(2))
