"""Load what a configuration says are the clients' records, and make sure that the task's model takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from torch import nn

from precad.clients.config import ClientConfig
from precad.clients.gradients.record_range import require_range
from precad.clients.models import networks
from precad.clients.models.fingerprint import require_named_model
from precad.clients.models.losses import loss_of
from precad.clients.records import Records, Split, example_label_of, example_of
from precad.clients.records.digest import sha256_of_records
from precad.clients.records.own import OwnSource, source_of
from precad.protos.task.task import Task

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The records that these clients train on, and the data that they are of."""

    of_client: dict[str, Records]
    held_out: dict[str, Records]
    """The records that they hold out, on which they evaluate models."""
    split: Split
    model: nn.Module
    """The task's, which takes these records."""
    is_dealt: bool
    """Whether one data set is dealt to all clients."""
    of_others: Callable[[str], Sequence[Records]]
    """The parts of all clients but this one, in the order of ids, where it is dealt."""
    deal: Callable[[], str] | None
    """Gives a digest of all clients' records, where they are of the user's own and dealt."""
    source: str
    """How messages call where they are from."""


def load_split_of(task: Task, config: ClientConfig, clients: Sequence[str]) -> Loaded:
    """Return the clients' records with the data that they are of. Audit clients have none: only a shape.

    Raises as `load_records`.
    """
    config.look_around()
    mine = [client for client in clients if client not in task.audit_clients]
    source = source_of(config, task, mine or clients, numbers=loss_of(task.loss).wants_numbers)
    model, loss = networks.of_task(task), loss_of(task.loss)
    networks.require_dimension(task, model)
    split = networks.fitted(model, source.load(side=networks.image_side(task.model)), loss)
    require_range(model, {f"{source.name}, training half": split.train}, loss)
    require_named_model(task, model, example_of(split.train), loss, example_label_of(split.train))
    ids = [client for client in task.clients if client not in task.audit_clients]
    is_dealt = not isinstance(source, OwnSource) or source.is_dealt

    def of_others(client: str) -> list[Records]:
        return list(source.records_of(split, ids, sorted(set(ids) - {client})).values())

    def deal() -> str:
        held_out = source.held_out_of(split, ids, sorted(ids)).items()
        kept = {f"held out of {client}": records for client, records in held_out}
        return sha256_of_records({**source.records_of(split, ids, sorted(ids)), **kept})

    nothing = dict.fromkeys(task.audit_clients, split.train.take(np.zeros(0, dtype=np.int64)))
    found, held_out = source.records_of(split, ids, mine) | nothing, source.held_out_of(split, ids, mine) | nothing
    return Loaded(
        of_client={client: found[client] for client in clients},
        held_out={client: held_out[client] for client in clients},
        split=split,
        model=model,
        is_dealt=is_dealt,
        of_others=of_others,
        deal=deal if isinstance(source, OwnSource) and is_dealt else None,
        source=source.name,
    )


def load_records(task: Task, config: ClientConfig, clients: Sequence[str]) -> dict[str, Records]:
    """Return the clients' records, as the source deals them.

    Raises DataError, also for a label or token that the model has no place for; ModelInputError where the model does
    not take them.
    """
    return of_each_client(load_split_of(task, config, clients), task)


def of_each_client(loaded: Loaded, task: Task) -> dict[str, Records]:
    """Return the clients' records, and warn where a client holds another number than it declares.

    It may. The declared number is a public constant, and one that must be exact would tell of a record whether it is
    there.
    """
    for client, records in loaded.of_client.items():
        audits = client in task.audit_clients or client in task.real_audit_clients  # which holds what it declares
        if len(records) != task.clients[client] and not audits:
            log.warning("client.declares_another_number", client=client, found=len(records))
    return loaded.of_client
