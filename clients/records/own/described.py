"""Where a client's own records are, and what the task says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from precad.clients.config import ClientConfig
from precad.clients.errors import MissingDataError, OwnRecordsError
from precad.clients.own_code import folders, looked
from precad.clients.records.own.labels import Wanted
from precad.protos.task.record_fields import Column, RecordFields

LABEL = "client.label"
"""The field that names labels, in messages."""
TEST = "app.test"
"""The part of an app that names records to measure on, in messages."""
CLIENT = "{client}"
"""Stands in a source for the id of the client whose records they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecords:
    """One source of records."""

    source: str
    """`csv:PATH` and so on, or `module:function` (`precad.clients.config.FILE_KINDS`)."""
    field: str = "client.records"
    """Name of it, in messages."""
    label: str | Sequence[str] | None = None
    """The column, or the array, with the labels; or several, each with a number of every label."""
    columns: tuple[Column, ...] = ()
    class_names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    """Shape of one record's features; empty: any."""
    infers_classes: bool = False
    """Whether names of classes may come from the records, as in a local run. Organisations must agree on them."""
    numbers: bool | None = False
    """Whether labels are numbers, of a loss such as the mean squared error, and no classes. None: as they are given."""
    client: str = ""
    """The client that the records are of, where each client has its own."""
    folders: tuple[Path, ...] = ()
    """Where paths and modules are looked for, in this order; empty: in the current folder."""

    @classmethod
    def of(
        cls,
        config: ClientConfig,
        fields: RecordFields,
        *,
        infers_classes: bool = False,
        numbers: bool | None = False,
    ) -> Self:
        """Take the values of the `[client]` section, which must name records, and of the task."""
        assert config.records is not None  # whoever asks has seen it
        return cls(
            source=config.records,
            label=config.label,
            columns=tuple(fields.columns),
            class_names=tuple(fields.class_names),
            shape=tuple(fields.record_shape),
            infers_classes=infers_classes,
            numbers=numbers,
            folders=folders(config.folder),
        )

    def of_client(self, client: str) -> Self:
        """Return the source of one client's own: its id stands for `{client}`, in an app's source too."""
        return replace(self, source=self.source.replace(CLIENT, client), client=client)

    @property
    def wanted(self) -> Wanted:
        """Return what labels are."""
        return Wanted(self.class_names, self.infers_classes, True if self.has_label_rows else self.numbers)

    def label_names(self, default: str | None = None) -> tuple[str, ...]:
        """Return the columns, or the arrays, with the labels. default: of a source that need not be told.

        Raises OwnRecordsError for several of classes, or one of them twice.
        """
        label = default if self.label is None else self.label
        names = () if label is None else (label,) if isinstance(label, str) else tuple(label)
        if len(set(names)) != len(names):
            raise OwnRecordsError(LABEL, "different names", "one twice")
        if len(names) > 1 and self.numbers is False:
            raise OwnRecordsError(LABEL, "one column, as the loss reads classes", f"{len(names)} columns")
        return names

    @property
    def has_label_rows(self) -> bool:
        """Tell whether a label is a row of numbers, (k,), each of a column of its own. A list of one has k = 1."""
        return self.numbers is not False and self.label is not None and not isinstance(self.label, str)

    @property
    def kind(self) -> str:
        """Return what is before the colon."""
        return self.source.partition(":")[0]

    @property
    def place(self) -> str:
        """Return what is behind the colon."""
        return self.source.partition(":")[2]

    def path(self) -> Path:
        """Return the file or folder that the source names. Raises MissingDataError, which says where was looked."""
        places = self.folders or folders()
        found = next((path for folder in places if (path := folder / self.place).exists()), None)
        if found is None:
            where = "found nothing there" if Path(self.place).is_absolute() else looked(places)
            raise MissingDataError(f"{self.field}: expected a file or folder {self.place}, {where}")
        return found
