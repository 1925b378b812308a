"""`precad check` of clients whose holder has a limit of its own: how much room its ledger has left for the task."""

from __future__ import annotations

from collections.abc import Collection

from precad.clients.config import ClientConfig
from precad.clients.payments import Payments, payments_of, payments_of_answers
from precad.dp.task_privacy import task_cost
from precad.protos.task.evaluation import n_due
from precad.protos.task.task import Task


def room_of(task: Task, config: ClientConfig, clients: Collection[str]) -> dict[str, str]:
    """Return by client how many uploads its ledger has room for, or epochs of records in bins. Changes nothing.

    Evaluations count that it pays meanwhile, if it is in every round that it can be in. Rounds that are lost are paid
    as well: a task can come to as many as its ledger counts where draws may be discarded.

    Raises: HolderLimitReachedError where there is room for none; ArgumentError, StateFileError.
    """
    if (limit := config.holder) is None:
        return {}
    found, answers = {}, payments_of_answers(task, clients, config)
    what_of = "this task with its evaluations" if answers else "this task"
    for client, payments in payments_of(task, clients, limit).items():
        payments.require_room()
        left, bins = _uploads_left(task, payments, answers.get(client)), task.record_bins or 1
        found[client] = (
            f"room for {left} more {'uploads' if bins == 1 else 'epochs'} of {what_of}{_short(task, left)}, within "
            f"epsilon {limit.limit_epsilon:g} at delta = {limit.delta:g}{_by_delta(task, left, payments)}"
        )
    return found


def _by_delta(task: Task, left: int, payments: Payments) -> str:
    """Say where a smaller limit has room for more of the task's uploads: the protocol's errors weigh e^limit."""
    if not _short(task, left) or not payments.are_ended_by_delta():
        return ""
    return "; delta ends it, so a new ledger of a smaller limit_epsilon has room for more"


def _short(task: Task, left: int) -> str:
    """Say that so many uploads, or epochs, are fewer than the task's, or than it can come to with lost rounds."""
    bins, most = task.record_bins or 1, task_cost(task).most_of_a_client
    assert most is not None  # a task has an end
    n, most = min(-(-task.rounds_of_a_client // bins), most // bins), most // bins
    if left < n:
        return f", fewer than the task's {n} {'rounds' if bins == 1 else 'epochs'}"
    return "" if left >= most else f", fewer than the {most} that it can come to with lost rounds"


def _uploads_left(task: Task, uploads: Payments, evaluations: Payments | None) -> int:
    """Return how many uploads there is room for, with the evaluations until the one after."""
    if evaluations is None:
        return uploads.uploads_left()
    apart = max(task.min_separation, task.record_bins or 1)
    return uploads.uploads_left_beside(evaluations, lambda n: n_due(task.evaluation_every, n * apart))
