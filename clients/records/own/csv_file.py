"""CSV: a header, then a record a row; UTF-8, with or without a byte order mark.

Read by the standard library. It needs no other package, and its errors quote no cell, unlike those of faster readers.
Fields are separated by what the header has most of: commas, semicolons or tabs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from precad.clients.errors import OwnRecordsError
from precad.clients.records.own.described import OwnRecords
from precad.clients.records.own.found import Found, read_as
from precad.clients.records.own.table import Table

_SEPARATORS = ",;\t"
_ROWS_AT_ONCE = 8192
_FIRST_ROW = 2
"""The number of the first record: rows count from 1, and the header is the first."""


def read_csv(described: OwnRecords) -> Found:
    """Return the records of a CSV file. Raises MissingDataError, OwnRecordsError."""
    path = described.path()
    header, rows = rows_of(path)
    table = Table(described, header, path, first_row=_FIRST_ROW)
    place = {name: i for i, name in enumerate(header)}
    while part := list(islice(rows, _ROWS_AT_ONCE)):
        table.add({name: [row[place[name]] for row in part] for name in table.used})
    return table.found()


def rows_of(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """Return the header, and the fields of each row below. Raises OwnRecordsError, now or at a later row."""
    rows = _rows(path, _text(path))
    header = next(rows, None)
    if header is None:
        raise OwnRecordsError(path, "a header and records", "an empty file")
    return header, rows


def _text(path: Path) -> str:
    """Raises OwnRecordsError."""
    with read_as(path, "a CSV file"):
        if not path.is_file():
            raise OwnRecordsError(path, "a CSV file", "a folder or a device")
        data = path.read_bytes()
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            row = data.count(b"\n", 0, error.start) + 1
            raise OwnRecordsError(f"{path}, row {row}", "UTF-8", "another encoding") from None


def _rows(path: Path, text: str) -> Iterator[list[str]]:
    """Return the fields of each row, the header's first, without spaces around them. Raises OwnRecordsError."""
    first_line = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    number, n_fields, is_over = 0, 0, False
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise OwnRecordsError(f"{path}, row {number + 1}", "CSV", f"{error}") from None
        if row is None:
            return
        number += 1
        if not row:
            is_over = True  # as it should be: empty lines stand at the end
            continue
        if number == 1:
            n_fields = len(row)
        _require_fields(row, n_fields, is_over, f"{path}, row {number}")
        yield [field.strip() for field in row]


def _require_fields(row: Sequence[str], n_fields: int, is_over: bool, where: str) -> None:
    if is_over:
        raise OwnRecordsError(where, "no row after an empty line", "one")
    if len(row) != n_fields:
        raise OwnRecordsError(where, f"{n_fields} fields, as in the header", f"{len(row)}")
