"""Resolve `target_epsilon` of a `[task]` section to the noise that meets it, where the section is read.

    target_epsilon = 3.0    ->    noise_multiplier = 3.988

sigma is the least multiplier of four decimal digits that meets the target against one server, by the proved
accountant. The target is for a unit of a client in all of the T rounds. Rounds that are
charged and then lost come on top. `epsilon_budget_one_server` of the same number ends the task before they cost more
than the target; for what that costs elsewhere see docs/explanation/privacy.md.

The canonical text has the noise, and not the target. Noise is what parties enforce, and a peer that came to it by other
means is no worse. Every party resolves its own file. Should two find other noise, by another version of a library,
their digests differ, and both are told the two multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from precad.dp.task_privacy import calibrated_noise
from precad.protos.task.algorithms import DEFAULT, RULES, named
from precad.protos.task.parameters import TaskParameters
from precad.protos.task.refusals import MIN_NOISE_STD_ON_GRID

TARGET: Final = "target_epsilon"
"""A key of `[task]` in a configuration, and no field of a task."""
_NOISE: Final = "noise_multiplier"


def resolved(section: Mapping[str, Any], task_of: Callable[[dict[str, Any]], TaskParameters]) -> dict[str, Any]:
    """Return a section with a target as one with noise.

    - task_of: the task of a section that has noise, its fields validated, and not yet whether they fit together

    Raises: ValueError, and what `task_of` raises.
    """
    target = section[TARGET]
    if _NOISE in section:
        raise ValueError(f"{TARGET}: expected it or {_NOISE}, found both")
    is_number = isinstance(target, int | float) and not isinstance(target, bool)
    if not (is_number and 0 < target < math.inf):
        raise ValueError(f"{TARGET}: expected a number above 0, found {target!r:.60}")
    rest = {name: value for name, value in section.items() if name != TARGET}
    wanted = named(section.get("algorithm", DEFAULT))
    if wanted in [name for name, rules in RULES.items() if not rules.is_private]:
        raise ValueError(f"{TARGET}: expected an algorithm that adds noise, found {wanted!r}")

    def with_noise(multiplier: float) -> TaskParameters:
        return task_of({**rest, _NOISE: multiplier})

    return {**rest, _NOISE: calibrated_noise(target, with_noise, at_least=_least(with_noise(1.0)))}


def keep_resolved(section: Mapping[str, Any], task: TaskParameters) -> dict[str, Any]:
    """Return a section with a target as the task that was made of it has it: for files that others read."""
    rest = {name: value for name, value in section.items() if name != TARGET}
    return {**rest, _NOISE: task.noise_multiplier}


def said(target: float, task: TaskParameters) -> str:
    """Return a line that tells people what a target came to."""
    return (
        f"noise_multiplier: {task.noise_multiplier:g}, the least with which {TARGET} = {target:g} holds for a "
        f"{_whose(task)} against one server after {task.rounds} rounds at "
        f"delta = {task.delta:g}"
    )


def _whose(task: TaskParameters) -> str:
    if task.rules.protects_clients:
        return "client"
    return "record" if task.records_per_person == 1 else f"group of {task.records_per_person} records of one person"


def _least(task: TaskParameters) -> float:
    """Return the least multiplier of noise that the grid can hold, whoever adds it."""
    rules = task.rules
    shares = math.sqrt(task.non_colluding) if rules.clients_share_noise else 1.0
    after_test = task.trim_tau if rules.trims else 1.0
    return least_noise(task.noise_clip, task.frac_bits) * shares / after_test


def least_noise(clip: float, frac_bits: int) -> float:
    """Return the least multiplier of noise that the grid can hold, where one party adds all of it."""
    return math.ldexp(MIN_NOISE_STD_ON_GRID / clip, -frac_bits)  # in this order nothing overflows
