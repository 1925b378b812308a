"""`precad check` of a task: the noise that it adds, and the privacy that it proves."""

from __future__ import annotations

from typing import Any, Final

from precad.deploy.figures import NO_USEFUL_BOUND, at_most, says_nothing
from precad.dp.accountants.pld import Label, PrivacyStatement, View
from precad.dp.task_privacy import noise_left, task_cost, task_privacy
from precad.mpc.parameters import MAX_FRAC_BITS
from precad.mpc.proved.sizes import largest_frac_bits
from precad.protos.task.task import Task

LEAST_NOISE_LEFT: Final = 0.95
"""Below this share of the noise multiplier, rounding is worth a warning."""


def privacy_facts(task: Task) -> dict[str, Any]:
    """Return the noise multiplier and what it proves, and what mode `proved` and rounding take of it.

    Nothing of a task without privacy.
    """
    if not task.rules.is_private:
        return {}
    facts = {"noise_multiplier": task.noise_multiplier, "privacy": promised(task)}
    if task.is_proved:
        facts["delta"] = f"mode proved itself takes {task.delta_slack:.1e} (1 + e^epsilon), which every epsilon counts"
    if not task.rules.protects_clients and (task.is_proved or noise_left(task) < LEAST_NOISE_LEFT):
        facts["fixed_point"] = _fixed_point(task)
    return facts


def _fixed_point(task: Task) -> str:
    """Say what rounding costs, and warn where that is more than a twentieth of the noise."""
    left = noise_left(task)
    said = f"{task.frac_bits} fractional bits leave {left:.3f} of noise_multiplier, which every epsilon counts"
    if left >= LEAST_NOISE_LEFT:
        return said
    most = largest_frac_bits(task.client_clip) if task.is_proved else MAX_FRAC_BITS
    cure = "raise frac_bits or record_clip" if task.frac_bits < most else "lower client_clip or raise record_clip"
    return f"WARNING: {said}: {cure}"


def promised(task: Task) -> str:
    """Return what the task proves for a unit of a client that is in all of its rounds, against one server.

    Then what it proves if that server may discard draws: a client can be in more rounds.
    """
    found = task_privacy(task)
    epsilon = found.epsilon(View.ONE_SERVER, task.rounds, task.delta)
    statement = PrivacyStatement(
        epsilon, task.delta, View.ONE_SERVER, Label.BOUND, unit=found.unit, group_size=found.group_size
    )
    of_rounds = NO_USEFUL_BOUND if says_nothing(epsilon) else str(statement)
    if_discarded = at_most(task_cost(task).view_if_discarded(View.ONE_SERVER))
    return f"after {task.rounds} rounds {of_rounds}; if it may discard draws, in the end {if_discarded}"
