"""Parquet: a table with the types of its columns, read by pyarrow."""

from __future__ import annotations

import importlib
from typing import Any

from precad.clients.errors import MissingDataError, OwnRecordsError
from precad.clients.extras import extra
from precad.clients.records.own.described import OwnRecords
from precad.clients.records.own.found import Found, read_as
from precad.clients.records.own.table import Cells, Table

_ROWS_AT_ONCE = 65_536


def read_parquet(described: OwnRecords) -> Found:
    """Return the records of a Parquet file; rows count from 1. Raises MissingDataError, OwnRecordsError."""
    path = described.path()
    parquet = extra(
        "pyarrow.parquet",
        MissingDataError(
            f'{path}: expected pyarrow, which reads Parquet, found none installed; install "precad[records]" from '
            "where precad came from"
        ),
    )
    with read_as(path, "a Parquet file"):
        if not path.is_file():
            raise OwnRecordsError(path, "a Parquet file", "a folder or a device")
        with parquet.ParquetFile(path) as file:
            table = Table(described, [field.name for field in file.schema_arrow], path, first_row=1)
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=table.used):
                table.add({name: _cells(batch.column(name)) for name in table.used})
    return table.found()


def _cells(column: Any) -> Cells:
    """Return a column as NumPy has it where it holds numbers alone, else as Python's values."""
    types = importlib.import_module("pyarrow").types
    if column.null_count == 0 and (types.is_integer(column.type) or types.is_floating(column.type)):
        found: Cells = column.to_numpy(zero_copy_only=False)
        return found
    values: Cells = column.to_pylist()
    return values
