"""A Hugging Face `datasets` object that `save_to_disk` wrote: a label's column, and one input or a table beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precad.clients.errors import MissingDataError, OwnRecordsError
from precad.clients.extras import extra
from precad.clients.records.own.arrays import from_rows
from precad.clients.records.own.described import LABEL, OwnRecords
from precad.clients.records.own.found import Found, read_as
from precad.clients.records.own.table import Table

DEFAULT_LABEL = "label"
_ROWS_AT_ONCE = 8192
_SCALARS = frozenset(
    ("bool", "float16", "float32", "float64", "string", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
)


def read_dataset(described: OwnRecords) -> Found:
    """Return the records of such a folder; rows count from 0. Raises MissingDataError, OwnRecordsError.

    Names of classes come from the task. Where it has none, the data set's own names count in a local run.
    """
    path = described.path()
    library = extra(
        "datasets",
        MissingDataError(
            f"{path}: expected the library datasets, which reads it, found none installed; install "
            '"precad[huggingface]" from where precad came from'
        ),
    )
    with read_as(path, "a data set that save_to_disk wrote"):
        found = library.load_from_disk(str(path))
        if isinstance(found, library.DatasetDict):
            raise OwnRecordsError(path, "one data set", "several; name the folder of one of them")
        return _records(found, described, path)


def _records(found: Any, described: OwnRecords, path: object) -> Found:
    label = described.label or DEFAULT_LABEL
    if not isinstance(label, str):
        raise OwnRecordsError(LABEL, "one column, as a data set on disk holds lists of numbers in one", "a list")
    if label not in found.column_names:
        raise OwnRecordsError(path, f"a column {label!r} (client.label)", "none of that name")
    names = tuple(getattr(found.features[label], "names", None) or ())
    if described.class_names and names and names != described.class_names:
        raise OwnRecordsError(path, "the classes of task.class_names, in their order", "others")
    if names and not described.class_names and not described.infers_classes and not described.numbers:
        raise OwnRecordsError("task.class_names", f"the names of the {len(names)} classes, which {path} names", "none")
    inputs = [name for name in found.column_names if name != label]
    if described.columns or all(_is_scalar(found.features[name]) for name in inputs):
        return _with_names(_table(found, described, label, path, has_names=bool(names)), names)
    if len(inputs) != 1:
        raise OwnRecordsError(path, "one column beside the label, or columns of numbers", f"{len(inputs)} columns")
    rows = found.with_format(None if _is_image(found.features[inputs[0]]) else "numpy")
    return _with_names(
        from_rows(
            [_input(rows, inputs[0], row, path) for row in range(len(rows))],
            list(found.with_format(None)[label]),
            path,
            replace(described.wanted, names=()) if names else described.wanted,
        ),
        names,
    )


def _input(rows: Any, column: str, row: int, path: object) -> object:
    """Return one input. Raises OwnRecordsError, as where an image is damaged."""
    with read_as(f"{path}, row {row} (from 0), column {column!r}", "an input"):
        return rows[row][column]


def _with_names(found: Found, names: tuple[str, ...]) -> Found:
    return Found(found.records, found.at, names or found.class_names)


def _table(found: Any, described: OwnRecords, label: str, path: object, *, has_names: bool) -> Found:
    as_numbers = replace(described, label=label, class_names=() if has_names else described.class_names)
    table = Table(as_numbers, found.column_names, path, first_row=0)
    plain = found.with_format(None)
    for start in range(0, len(plain), _ROWS_AT_ONCE):
        part = plain[start : start + _ROWS_AT_ONCE]
        table.add({name: part[name] for name in table.used})
    return table.found()


def _is_scalar(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")) in _SCALARS and not hasattr(feature, "shape")


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"
