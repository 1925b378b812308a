"""Choose C of evaluations by clients from what these hold out, where a configuration says nothing.

The default of `task.evaluation_clip` is the most records that a client declares: servers know no holdout. Clients train
on the records that they declare, N of them, and hold out N h / (1 - h) beside these, at holdout h. These are mostly
fewer. A smaller C bounds a liar and a whole client's cost more tightly, at the same noise. A task that exists keeps its
C: the default is no part of its text. So a local run that makes a task writes C into it, and others are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.task import Task


def most_held_out(declared: Iterable[int], holdout: float) -> int:
    """Return how many records a client holds out on average, rounded up, of those clients the one with the most.

    declared: how many each trains on. holdout: its share of all of a client's records, below 1.
    """
    return max(1, math.ceil(max(declared) * holdout / (1 - holdout)))


def supply_evaluation_clip(task: dict[str, Any], client: Mapping[str, Any], *, declares: bool) -> None:
    """Write `evaluation_clip` into the `[task]` section of a local run whose clients evaluate, where it says nothing.

    declares: whether the configuration declares the clients' records itself. Its task is then complete, and stays. What
    a foreign trainer holds out is not known. task: with the clients' declared records.
    """
    holdout = client.get("holdout")
    if task.get("evaluation") != BY_CLIENTS or declares or not holdout or client.get("trainer") is not None:
        return
    task.setdefault("evaluation_clip", float(most_held_out(task["clients"].values(), holdout)))


def clip_advice(task: Task, holdout: float | None) -> str:
    """Say which C would do for clients with this holdout; nothing where the task says its own, or it is no smaller."""
    if task.evaluation_round is None or task.evaluation_clip is not None or not holdout:
        return ""
    least, found = most_held_out(task.clients.values(), holdout), task.evaluation_round.client_clip
    if least >= found:
        return ""
    return (
        f"task.evaluation_clip is not set: C is {found:g}, the most that a client declares. With client.holdout = "
        f"{holdout:g} it holds out {least} on average; evaluation_clip = {least} lowers what it moves and costs"
    )
