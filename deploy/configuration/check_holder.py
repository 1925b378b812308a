"""`precad check` of clients whose holder has a limit of its own: how much room its ledger has left for the task."""

from __future__ import annotations

from collections.abc import Collection

from precad.clients.holder_limit import HolderLimit
from precad.clients.payments import payments_of
from precad.protos.task.task import Task


def room_of(task: Task, limit: HolderLimit, clients: Collection[str]) -> dict[str, str]:
    """Return by client how many uploads its ledger has room for, or epochs of records in bins. Changes nothing.

    Raises: HolderLimitReachedError where there is room for none; ArgumentError, StateFileError.
    """
    found = {}
    for client, payments in payments_of(task, clients, limit).items():
        payments.require_room()
        left, bins = payments.uploads_left(), task.record_bins or 1
        n, what = -(-task.rounds_of_a_client // bins), ("uploads", "rounds") if bins == 1 else ("epochs", "epochs")
        short = "" if left >= n else f", fewer than the task's {n} {what[1]}"
        found[client] = (
            f"room for {left} more {what[0]} of this task{short}, within epsilon {limit.limit_epsilon:g} "
            f"at delta = {limit.delta:g}"
        )
    return found
