"""`precad check` of clients: the records that they would train on, read and verified as at their start.

Apart from the rest of the check because it needs PyTorch, which a server's machine may lack.
"""

from __future__ import annotations

from collections.abc import Sequence

from precad.clients.config import ClientConfig
from precad.clients.errors import MissingDataError
from precad.clients.process import load_records
from precad.protos.task.task import Task


def records_here(task: Task, config: ClientConfig, clients: Sequence[str]) -> dict[str, str]:
    """Return by client what is here and what it declares; what a start would download is not downloaded.

    Raises: DataError, ArgumentError, ModelInputError as the client itself.
    """
    try:
        found = load_records(task, config.model_copy(update={"download": False}), clients)
    except MissingDataError:
        if not config.download:
            raise
        return dict.fromkeys(clients, f"{config.dataset} is not here: downloaded at the start")
    return {client: f"{len(own)} of {config.dataset}, declares {task.clients[client]}" for client, own in found.items()}
