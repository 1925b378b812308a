"""`precad check` of a task with budgets. Failure means that a task ends before its last round, and nobody was told."""

from __future__ import annotations

from typing import Any

import pytest

from precad.deploy.configuration.check_privacy import privacy_facts
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_cost, task_privacy
from tests.harness.harness import small_task

PLAN: dict[str, Any] = {"rounds": 20, "noise_multiplier": 4.0}


def test_a_budget_that_ends_the_task_early_is_said() -> None:
    """By the accountant: the rounds said cost at most the budget, and one more would not."""
    task = small_task(**PLAN, epsilon_budget_one_server=1.0)
    most = task_cost(task).most_of_a_client
    assert most is not None
    said = privacy_facts(task)["budgets"]
    assert said == f"allow a client {most} of 20 rounds; the task ends before one more"
    epsilons = [task_privacy(task).epsilon(View.ONE_SERVER, rounds, task.delta) for rounds in (most, most + 1)]
    assert epsilons[0] <= 1.0 < epsilons[1]


@pytest.mark.parametrize("budgets", [{}, {"epsilon_budget_one_server": 50.0}])
def test_budgets_that_last_are_not_said(budgets: dict[str, float]) -> None:
    assert "budgets" not in privacy_facts(small_task(**PLAN, **budgets))
