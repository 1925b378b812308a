"""Own records in the place of a data set: dealt over the clients of a local run, or each client's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from precad.clients.config import FILE_KINDS, ClientConfig
from precad.clients.errors import DataError, OwnRecordsError
from precad.clients.records.holdout import content_order, is_kept_aside
from precad.clients.records.own.described import CLIENT, TEST, OwnRecords
from precad.clients.records.own.found import Found
from precad.clients.records.own.reading import app_of, names_client, read, read_given, require_alike
from precad.clients.records.partitions import Parts
from precad.clients.records.records import Records, Split, joined
from precad.clients.records.source import DataSource
from precad.protos.task.record_fields import RecordFields


def source_of(
    config: ClientConfig,
    fields: RecordFields,
    clients: Sequence[str],
    *,
    infers_classes: bool = False,
    numbers: bool | None = False,
) -> DataSource:
    """Return the data set that the `[client]` section names, or the records of these clients' own.

    infers_classes: whether the records may name the classes where the task does not, as in a local run.

    numbers: whether the loss wants numbers in the place of classes; None: whatever there is.
    """
    if config.records is None:
        return DataSource.of(config)
    return OwnSource.of_own(config, fields, clients, infers_classes=infers_classes, numbers=numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnSource(DataSource):
    """Records of the clients' own: one source that is dealt, or a source for each client."""

    described: OwnRecords
    clients: tuple[str, ...]
    """The clients whose records are read, in the order of their ids."""
    is_dealt: bool = False
    is_measured: bool = False
    """Whether whoever reads them measures models, on an app's test records too. An organisation's client does not."""

    @classmethod
    def of_own(
        cls,
        config: ClientConfig,
        fields: RecordFields,
        clients: Sequence[str],
        *,
        infers_classes: bool,
        numbers: bool | None,
    ) -> Self:
        """Take the values of the `[client]` section, which names records, and of the task. Raises ExtensionError."""
        described = OwnRecords.of(config, fields, infers_classes=infers_classes, numbers=numbers)
        return cls(
            partition=config.partition,
            seed=config.partition_seed,
            shards_per_client=config.shards_per_client,
            dirichlet_alpha=config.dirichlet_alpha,
            described=described,
            clients=tuple(sorted(clients)),
            is_dealt=config.dealt and not names_client(described),
            is_measured=config.dealt,
            holdout=config.holdout or 0.0,
            holdout_seed=config.holdout_seed,
        )

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"client.records {self.described.source}"

    def load(self, *, side: int | None = None) -> Split:
        """Return the records to train on, and those that are kept for testing. `side` means nothing here.

        Where each client has its own, `users` says whose each is. Raises DataError, ExtensionError.
        """
        found = self._found()
        names = next((one.class_names for one in found if one.class_names), ())
        for one in found:
            if one.class_names != names:
                raise DataError(
                    "client.records: expected the same classes in every client's records, found others; name them in "
                    "task.class_names"
                )
            if one.columns != found[0].columns:
                raise DataError(
                    "client.records: expected the same columns in the same order in every client's records, found "
                    "others; name them in task.columns"
                )
        halves = [self._halves(one.records) for one in found]
        train, test = joined([half[0] for half in halves]), joined([half[1] for half in halves])
        if (app := app_of(self.described)) is not None and not self.holdout:
            alike = replace(self.described, field=TEST, class_names=names, infers_classes=False)  # as in training
            has_own = self.is_measured and app.test is not None
            test = read_given(app.test, alike).records if has_own else train
            require_alike(test, train)
        owners, holders = (np.repeat(np.arange(len(halves)), [len(half[i]) for half in halves]) for i in (0, 1))
        n_classes, highest = classes_of(found)
        return Split(
            train=train,
            test=test,
            users=None if self.is_dealt else owners,
            n_logits=len(names) or n_classes,
            is_own=True,
            class_names=names,
            columns=found[0].columns,
            highest=highest,
            held_out=test if self.holdout else None,
            holders=None if self.is_dealt else holders,
        )

    def _found(self) -> list[Found]:
        """Return the source that is dealt, or that of each client. Raises DataError, ExtensionError."""
        source = self.described.source
        if self.is_dealt:
            return [read(self.described)]
        if len(self.clients) > 1 and not names_client(self.described):
            raise OwnRecordsError(
                "client.records", f"{CLIENT} in it, as {len(self.clients)} clients have records of their own", source
            )
        each = [self.described.of_client(client) for client in self.clients]
        found = [read(one) for one in each]
        shape = found[0].records.shape
        for one, where in zip(found, each, strict=True):
            if one.records.shape != shape or one.records.features.dtype != found[0].records.features.dtype:
                raise OwnRecordsError(where.source, f"records of shape {shape}", f"shape {one.records.shape}")
        return found

    def _halves(self, records: Records) -> tuple[Records, Records]:
        """Return records to train on and records kept for testing. Raises OwnRecordsError.

        What code gives, in each client's process again and perhaps in another order, is put into one that its content
        decides. Dealt by place, a record could be two clients', and move two updates.
        """
        is_kept = is_kept_aside(records, self.holdout, self.holdout_seed)
        if is_kept.all():
            raise OwnRecordsError("client.holdout", "a share that leaves a record to train on", f"{self.holdout:g}")
        is_given_anew = self.is_dealt and self.described.kind not in FILE_KINDS
        order = content_order(records) if is_given_anew else np.arange(len(records))
        return records.take(order[~is_kept[order]]), records.take(order[is_kept[order]])

    def parts(self, split: Split, n_clients: int) -> Parts:
        """Return the indices of each client's records in the training half. Raises ArgumentError."""
        if self.is_dealt or split.users is None:
            return DataSource.parts(self, split, n_clients)
        owners: NDArray[np.int64] = split.users
        return tuple(np.flatnonzero(owners == i) for i in range(n_clients))

    def records_of(self, split: Split, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Records]:
        """Return the records of the `wanted` among all `clients` of the task, of whom only `self.clients` are read."""
        return DataSource.records_of(self, split, clients if self.is_dealt else self.clients, wanted)

    def held_out_of(self, split: Split, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Records]:
        """Return the records that the `wanted` among all `clients` hold out, of whom only `self.clients` are read."""
        return DataSource.held_out_of(self, split, clients if self.is_dealt else self.clients, wanted)


def classes_of(found: Sequence[Found]) -> tuple[int, str]:
    """Return how many classes labels need, two at least, and the place of a record with the highest one."""
    each = [(int(one.records.labels.max()), one) for one in found if one.records.labels.dtype == np.int64]
    most, where = max(each, key=lambda pair: pair[0], default=(0, found[0]))
    row = int(where.records.labels.reshape(len(where.records), -1).max(axis=1).argmax())
    return max(most + 1, 2), where.at(row)
