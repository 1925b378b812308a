"""Read the values of one column. A cell that is no number is NaN, and so contributes nothing to an answer.

No message depends on a cell: a fault that one record caused would tell of the record. Columns of tables come from
`csv:` and `parquet:` records. Data sets, and every other source, have one column: `label`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, OwnRecordsError
from precad.clients.extras import extra
from precad.clients.own_code import look_in
from precad.clients.records import partitions
from precad.clients.records.own import source_of
from precad.clients.records.own.csv_file import rows_of
from precad.clients.records.own.described import CLIENT, OwnRecords
from precad.clients.records.own.found import read_as
from precad.protos.task.record_fields import RecordFields

Values = NDArray[np.float64]
LABEL: Final = "label"
TABLES: Final = ("csv", "parquet")


def values_of(config: ClientConfig, column: str, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Values]:
    """Return the column's values, (n,) each, of the `wanted` among all `clients` of the task.

    Raises: DataError, ArgumentError for a source or a partition that cannot give them.
    """
    look_in(config.folder)
    if config.records is None or config.records.partition(":")[0] not in TABLES:
        return _labels(config, column, clients, wanted)
    described = OwnRecords.of(config, RecordFields())
    if CLIENT in described.source:
        each = {name: described.of_client(name) for name in wanted}
        return {name: _column(own, column) for name, own in each.items()}
    if not config.dealt:
        if len(wanted) > 1:
            raise OwnRecordsError(
                "client.records", f"{CLIENT} in it, as {len(wanted)} clients have records of their own", config.records
            )
        return {wanted[0]: _column(described, column)}
    if config.partition != "iid":
        raise ArgumentError(f"client.partition: expected 'iid' of a table in a query, found {config.partition!r}")
    values = _column(described, column)
    parts = partitions.iid(len(values), len(clients), seed=config.partition_seed)
    dealt = dict(zip(sorted(clients), parts, strict=True))
    return {name: values[dealt[name]] for name in wanted}


def _labels(config: ClientConfig, column: str, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Values]:
    """Return the labels that clients train on."""
    if column != LABEL:
        raise ArgumentError(
            f"task.query.column: expected {LABEL!r}, the one column of {config.data_name}, found {column!r}"
        )
    source = source_of(config, RecordFields(), list(wanted), infers_classes=True, numbers=None)
    found = source.records_of(source.load(), list(clients), list(wanted))
    return {name: own.labels.astype(np.float64).reshape(len(own), -1)[:, 0] for name, own in found.items()}


def _column(described: OwnRecords, column: str) -> Values:
    return _of_parquet(described, column) if described.kind == "parquet" else _of_csv(described, column)


def _of_csv(described: OwnRecords, column: str) -> Values:
    path = described.path()
    header, rows = rows_of(path)
    place = _place(path, header, column)
    return _numbers(row[place] for row in rows)


def _of_parquet(described: OwnRecords, column: str) -> Values:
    path = described.path()
    parquet = extra(
        "pyarrow.parquet", OwnRecordsError(path, 'pyarrow, which reads Parquet ("precad[records]")', "none installed")
    )
    with read_as(path, "a Parquet file"), parquet.ParquetFile(path) as file:
        _place(path, [field.name for field in file.schema_arrow], column)
        return _numbers(cell for batch in file.iter_batches(columns=[column]) for cell in batch.column(0).to_pylist())


def _place(path: object, header: Sequence[str], column: str) -> int:
    if header.count(column) != 1:
        found = "none of that name" if column not in header else "several of that name"
        raise OwnRecordsError(path, f"one column {column!r}", f"{found} among {len(header)}")
    return header.index(column)


def _numbers(cells: Iterable[object]) -> Values:
    return np.fromiter(map(_number, cells), np.float64)


def _number(cell: object) -> float:
    """Return the number in a cell; NaN for anything else, a number too large for float64 among it."""
    if isinstance(cell, str) and "_" in cell:  # Python's notation, not a table's
        return math.nan
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def sizes(values: Mapping[str, Values]) -> dict[str, int]:
    """Return how many records each client declares: at least one, so that it can take part."""
    return {name: max(1, len(own)) for name, own in values.items()}
