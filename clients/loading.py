"""Load what a configuration says are the clients' records, and make sure that the task's model takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from precad.clients.config import ClientConfig
from precad.clients.gradients.record_range import require_range
from precad.clients.models import networks
from precad.clients.models.fingerprint import require_named_model
from precad.clients.models.losses import loss_of
from precad.clients.records import Records, Split, example_label_of, example_of
from precad.clients.records.own import OwnSource, source_of
from precad.protos.task.task import Task


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
    deal: Callable[[], bytes] | None
    """Gives a digest of all clients' records, where they are of the user's own and dealt."""
    source: str
    """How messages call where they are from."""


def load_split_of(task: Task, config: ClientConfig, clients: Sequence[str]) -> Loaded:
    """Return the clients' records with the data that they are of. Audit clients have none: only a shape.

    Raises as `precad.clients.process.load_records`.
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

    def deal() -> bytes:
        return _digest(source.records_of(split, ids, sorted(ids)), source.held_out_of(split, ids, sorted(ids)))

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


def _digest(*parts: Mapping[str, Records]) -> bytes:
    """Return the BLAKE2b digest, 32 bytes, of each client's records in these parts, whoever holds which."""
    digest = hashlib.blake2b(digest_size=32)
    for of_client in parts:
        for client, records in of_client.items():
            for values in (records.features, records.labels):
                digest.update(f"{client!r} {values.dtype.str} {values.shape}\n".encode())
                digest.update(np.ascontiguousarray(values).data)
    return digest.digest()
