"""`precad check` of clients: the records that they would train on, read and verified as at their start.

Apart from the rest of the check because it needs PyTorch, which a server's machine may lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from precad.clients.config import ClientConfig
from precad.clients.errors import MissingDataError
from precad.clients.models.fingerprint import model_digest
from precad.clients.models.losses import loss_of
from precad.clients.process import Loaded, load_split_of
from precad.clients.records import example_label_of, example_of
from precad.clients.records.own.described import CLIENT
from precad.dp.accountants.pld import Label, PrivacyStatement, View
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task


def records_here(task: Task, config: ClientConfig, clients: Sequence[str]) -> dict[str, str]:
    """Return by client what is here and what it declares; what a start would download is not downloaded.

    Raises: DataError, ArgumentError, ModelInputError as the client itself.
    """
    if config.records is not None:
        if not config.dealt and CLIENT not in config.records and len(clients) > 1:
            load_split_of(task, config, clients)  # which refuses: each of them has its own
        return {client: _own(task, client, load_split_of(task, config, [client])) for client in clients}
    try:
        found = load_split_of(task, config.model_copy(update={"download": False}), clients)
    except MissingDataError:
        if not config.download:
            raise
        return dict.fromkeys(clients, f"{config.dataset} is not here: downloaded at the start")
    digest = _digest_to_agree_on(task, found)
    own = found.of_client.items()
    return {c: f"{len(records)} of {config.dataset}, declares {task.clients[c]}{digest}" for c, records in own}


def _digest_to_agree_on(task: Task, found: Loaded) -> str:
    """Say which digest a model or loss of the user's own has here, where the task names none; else nothing."""
    if ":" not in task.model + task.loss or task.model_digest is not None:
        return ""
    some = found.split.train
    digest = model_digest(found.model, example_of(some), loss_of(task.loss), example_label_of(some))
    return f"; task.model_digest = {digest!r} is not set"


def _columns_to_agree_on(columns: Sequence[str]) -> str:
    """Say by a digest which columns the features are, where no task names them: a file's header is not for all eyes."""
    if not columns:
        return ""
    digest = hashlib.sha256("\n".join(columns).encode()).hexdigest()[:16]
    return f"; task.columns is not set: features are {len(columns)} columns in the file's order, SHA-256 {digest}"


def _own_privacy(task: Task, client: str) -> str:
    """Say what a record of a client with a rate of its own is proved; nothing of others, whose figure is the task's."""
    if client not in task.record_rates:
        return ""
    own = task_privacy(task.model_copy(update={"record_rate": task.rate_of(client)}))
    epsilon = own.epsilon(View.ONE_SERVER, task.rounds, task.delta)
    statement = PrivacyStatement(epsilon, task.delta, View.ONE_SERVER, Label.BOUND, unit=own.unit)
    return f", at its own rate {task.rate_of(client):g}: after {task.rounds} rounds {statement}"


def _own(task: Task, client: str, found: Loaded) -> str:
    """Say how many records there are, of what shape and classes, and what a round would draw. No more of them."""
    own, test = found.of_client[client], found.split.test
    classes = "numbers" if own.labels.dtype == np.float32 else f"{found.split.n_logits} classes"
    if task.class_names:
        classes += f" ({', '.join(task.class_names)})"
    aside = f", {len(test)} more kept for testing" if len(test) else ""
    digest = f"{_digest_to_agree_on(task, found)}{_columns_to_agree_on(found.split.columns)}"
    drawn = f"a round draws {task.rate_of(client) * len(own):.4g} on average{_own_privacy(task, client)}"
    return f"{len(own)} of shape {own.shape} in {classes}{aside}; declares {task.clients[client]}; {drawn}{digest}"
