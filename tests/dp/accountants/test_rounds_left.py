"""How many rounds a budget still allows: as many as the ledger then really takes, charged one by one."""

from __future__ import annotations

import pytest

from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import Charged, Level
from precad.dp.errors import BudgetExceededError
from precad.dp.ledgers.ledger import Ledger
from precad.dp.task_privacy import budgets_of, task_cost, task_privacy
from precad.protos.task.task import Task
from tests.harness.harness import small_task

BUDGETS = ({"epsilon_budget_one_server": 2.0}, {"epsilon_budget_clients_only": 1.5}, {"epsilon_budget_client": 6.0})


def ledger_of(task: Task) -> Ledger:
    privacy = task_privacy(task)
    return Ledger(
        None, events=privacy.events, delta=task.delta, budgets=budgets_of(task), every_round=privacy.every_round,
        most_rounds=task.most_draws,
    )  # fmt: skip


def charged_of(ledger: Ledger) -> Charged:
    rounds = ledger.rounds
    return Charged(max(rounds, default=-1) + 1, len(rounds), max(ledger.participation.values(), default=0))


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_ledger_takes_as_many_rounds_and_no_more(budget: dict[str, float]) -> None:
    """From any point on: charge all clients in every round until the ledger refuses."""
    task = small_task(rounds=60, record_rate=0.2, client_rate=0.5, noise_multiplier=2.0, **budget)
    (key,) = budgets_of(task)
    cost, clients = task_cost(task), sorted(task.clients)
    with ledger_of(task) as ledger:
        ledger.charge(0, clients[:1])
        ledger.charge(1, clients[1:])
        left = cost.rounds_left(key, charged_of(ledger))
        assert 0 < left < task.most_draws - 2  # the budget binds, or this shows nothing
        for number in range(2, 2 + left):
            assert cost.rounds_left(key, charged_of(ledger)) == left - (number - 2)
            ledger.charge(number, clients)
        assert cost.rounds_left(key, charged_of(ledger)) == 0
        with pytest.raises(BudgetExceededError):
            ledger.charge(2 + left, clients)


def test_draws_that_were_given_up_count_for_a_level_and_not_for_a_view() -> None:
    """As the ledger counts them."""
    task = small_task(rounds=60, record_rate=0.2, client_rate=0.5, noise_multiplier=2.0, **BUDGETS[0], **BUDGETS[2])
    cost, before = task_cost(task), Charged(4, 4, 3)
    lost = before._replace(n_drawn=6)

    assert cost.rounds_left(Level.CLIENT, lost) == cost.rounds_left(Level.CLIENT, before) - 2
    assert cost.rounds_left(View.ONE_SERVER, lost) == cost.rounds_left(View.ONE_SERVER, before)


def test_a_budget_that_never_binds_leaves_the_rounds_that_there_can_be() -> None:
    task = small_task(rounds=3, epsilon_budget_one_server=1e6)
    assert task_cost(task).rounds_left(View.ONE_SERVER, Charged(1, 1, 1)) == task.most_draws - 1
