"""`precad check` of a task: the noise that it adds, and the privacy that it proves."""

from __future__ import annotations

import math
from typing import Any, Final

from precad.deploy.shown.figures import NO_USEFUL_BOUND, says_nothing, three_digits
from precad.dp.accountants.pld import Label, PrivacyStatement, View
from precad.dp.accountants.slack import why_no_bound
from precad.dp.task_privacy import noise_left, task_cost, task_privacy
from precad.mpc.parameters import MAX_FRAC_BITS
from precad.protos.task.grid import LARGEST, largest_frac_bits
from precad.protos.task.task import Task

MOST_OF_EPSILON: Final = 0.001
"""Above this share of epsilon, what rounding adds is worth a warning."""
LEAST_LEFT: Final = 0.95
"""Below this share of the noise multiplier, what is left is worth a warning (protocol-v2, section 4)."""
LEAST_NOISE_TAKEN: Final = 1e-4
"""Below this share of the noise multiplier, rounding adds less than that to any epsilon. To gain more, an epsilon would
have to grow with the tenth power of 1 / sigma."""


def privacy_facts(task: Task) -> dict[str, Any]:
    """Return the noise multiplier and what it proves, and what mode `proved` and rounding take of it.

    Nothing of a task without privacy, but what is released of single updates.
    """
    if not task.rules.is_private:
        return {} if task.krum_rule is None else {"privacy": task.krum_rule.released}
    facts = {"noise_multiplier": task.noise_multiplier, "privacy": promised(task)}
    most = task_cost(task).most_of_a_client
    if most is not None and most < task.rounds_of_a_client:
        facts["budgets"] = f"allow a client {most} of {task.rounds_of_a_client} rounds; the task ends before one more"
    if condition := task_privacy(task).said[View.ONE_SERVER]:
        facts["privacy_rests_on"] = condition
    if task.is_proved:
        facts["delta"] = f"mode proved itself takes {task.delta_slack:.1e} (1 + e^epsilon), which every epsilon counts"
    if not task.rules.protects_clients and (said := rounding_said(task)):
        facts["fixed_point"] = said
    return facts


def rounding_said(task: Task) -> str | None:
    """Say what rounding costs, and warn where that is more than a thousandth of epsilon, or a
    twentieth of the noise. None: next to nothing."""
    left = noise_left(task)
    said = f"{task.frac_bits} fractional bits leave {left:.4f} of noise_multiplier, which every epsilon counts"
    if 1 - left < LEAST_NOISE_TAKEN:
        return said if task.is_proved else None
    finest = task.model_copy(update={"frac_bits": MAX_FRAC_BITS})
    rounded, exact = (
        task_privacy(each).epsilon(View.ONE_SERVER, task.rounds_of_a_client, task.delta) for each in (task, finest)
    )
    if left >= LEAST_LEFT and rounded <= exact * (1 + MOST_OF_EPSILON):
        return said if task.is_proved else None
    may_grow = task.frac_bits < largest_frac_bits(task.mode, task.client_clip)
    cure = f'frac_bits = "{LARGEST}" costs nothing' if may_grow else "lower client_clip or raise record_clip"
    share = f", {rounded / exact - 1:.1%} of it" if math.isfinite(rounded) else ""
    return f"WARNING: {said}{share}: {cure}"


def promised(task: Task) -> str:
    """Return what the task proves for a unit of a client that is in all rounds that it can be, against one server.

    Then what it proves if that server may discard draws: a client can be in more rounds.
    """
    found = task_privacy(task)
    epsilon = found.epsilon(View.ONE_SERVER, task.rounds_of_a_client, task.delta)
    statement = PrivacyStatement(
        epsilon, task.delta, View.ONE_SERVER, Label.BOUND, unit=found.unit, group_size=found.group_size
    )
    of_rounds = NO_USEFUL_BOUND if says_nothing(epsilon) else str(statement)
    discarded = task_cost(task).view_if_discarded(View.ONE_SERVER)
    if_discarded = three_digits(discarded)
    if task.is_proved and found.events[View.ONE_SERVER] is not None:
        why = why_no_bound(task.delta, task.delta_slack)
        if math.isinf(epsilon):
            of_rounds = why
        elif math.isinf(discarded):
            if_discarded = why
    evaluations = f" and {task.most_evaluations} evaluations" if task.most_evaluations else ""
    turns = "" if task.min_separation == 1 else f", {task.rounds_of_a_client} of them a client's turns,"
    said = f"after {task.rounds} rounds{turns}{evaluations} {of_rounds}"
    return f"{said}; if it may discard draws, in the end {if_discarded}"
