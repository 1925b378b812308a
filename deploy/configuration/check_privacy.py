"""`precad check` of a task: the noise that it adds, and the privacy that it proves."""

from __future__ import annotations

from typing import Any

from precad.dp.accountants.pld import Label, PrivacyStatement, View
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task


def privacy_facts(task: Task) -> dict[str, Any]:
    """Return the noise multiplier, calibrated or given, and what it proves; nothing of a task without privacy."""
    if not task.rules.is_private:
        return {}
    return {"noise_multiplier": task.noise_multiplier, "privacy": promised(task)}


def promised(task: Task) -> str:
    """Return what the task proves for a unit of a client that is in all of its rounds, against one server."""
    found = task_privacy(task)
    epsilon = found.epsilon(View.ONE_SERVER, task.rounds, task.delta)
    statement = PrivacyStatement(epsilon, task.delta, View.ONE_SERVER, Label.BOUND, unit=found.unit)
    return f"after {task.rounds} rounds {statement}"
