"""`precad check` of a task: the noise that it adds, and the privacy that it proves."""

from __future__ import annotations

from typing import Any

from precad.deploy.figures import NO_USEFUL_BOUND, at_most, says_nothing
from precad.dp.accountants.pld import Label, PrivacyStatement, View
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task


def privacy_facts(task: Task) -> dict[str, Any]:
    """Return the noise multiplier, calibrated or given, and what it proves; nothing of a task without privacy."""
    if not task.rules.is_private:
        return {}
    return {"noise_multiplier": task.noise_multiplier, "privacy": promised(task)}


def promised(task: Task) -> str:
    """Return what the task proves for a unit of a client that is in all of its rounds, against one server.

    Then what it proves if that server may discard draws: a client can be in more rounds.
    """
    found = task_privacy(task)
    epsilon = found.epsilon(View.ONE_SERVER, task.rounds, task.delta)
    statement = PrivacyStatement(epsilon, task.delta, View.ONE_SERVER, Label.BOUND, unit=found.unit)
    of_rounds = NO_USEFUL_BOUND if says_nothing(epsilon) else str(statement)
    if_discarded = at_most(task_cost(task).view_if_discarded(View.ONE_SERVER))
    return f"after {task.rounds} rounds {of_rounds}; if it may discard draws, in the end {if_discarded}"
