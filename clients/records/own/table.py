"""Cells of named columns as features: numbers standardised by the task's constants, categories as 0 and 1."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import OwnRecordsError
from precad.clients.records.own.described import LABEL, OwnRecords
from precad.clients.records.own.found import At, Found, first
from precad.clients.records.own.labels import targets
from precad.clients.records.records import Records
from precad.protos.task.record_fields import LONGEST_NAME, Column

Cells = Sequence[object] | NDArray[np.generic]
"""Cells of one column: texts, numbers, or None where there is nothing."""
_MOST_COLUMNS = 65_536
_MISSING, _NO_NUMBER = "an empty cell", "something that is no number"
_STANDS_FOR = "; `missing` of a column of task.columns is the number that one stands for"
_COMMA = "; decimals follow a point, not a comma"
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
_UNDECLARED = "; task.columns can leave a column out, or name its categories"


class Table:
    """Turns a table into records, part by part: a large file never stands in memory as text."""

    def __init__(self, described: OwnRecords, header: Sequence[str], file: object, *, first_row: int) -> None:
        """first_row: the number of the first record in messages. Raises OwnRecordsError."""
        self._described, self._file, self._first_row = described, file, first_row
        _require_header(header, file)
        self.labels = described.label_names()
        if not self.labels:
            raise OwnRecordsError(LABEL, f"the name of a column of {file}", "none")
        declared = [column.name for column in described.columns]
        known = set(header)
        for name in (*self.labels, *declared):
            if name not in known:
                raise OwnRecordsError(file, f"a column {name!r}", _none_of(name, header))
        if twice := [name for name in declared if name in self.labels]:
            raise OwnRecordsError("task.columns", "features, which a label is none of", f"the label {twice[0]!r}")
        self.columns = described.columns or tuple(Column(name=name) for name in header if name not in self.labels)
        if not self.columns:
            raise OwnRecordsError(file, "a column beside the label", "none")
        self._features: list[NDArray[np.float32]] = []
        self._labels: dict[str, list[object]] = {name: [] for name in self.labels}

    @property
    def used(self) -> list[str]:
        """Return the columns that are read: labels and features."""
        return list(dict.fromkeys([*self.labels, *(column.name for column in self.columns)]))

    @property
    def _n_records(self) -> int:
        return len(self._labels[self.labels[0]])

    def at(self, row: int) -> str:
        """Return the place of a record."""
        return f"{self._file}, row {self._first_row + row}{'' if self._first_row else ' (from 0)'}"

    def add(self, cells: Mapping[str, Cells]) -> None:
        """Take the next records, by column; what a column holds that is not used is not read. Raises
        OwnRecordsError."""
        start = self._n_records
        hint = "" if self._described.columns else _UNDECLARED
        parts = [_features(cells[c.name], c, self._cells(c.name, start), hint) for c in self.columns]
        self._features.append(np.concatenate(parts, axis=1))
        for name, column in self._labels.items():
            column += list(cells[name])

    def _cells(self, column: str, start: int) -> At:
        """Return what tells the place of a cell of this column, counted from a record on."""
        return lambda row: f"{self.at(start + row)}, column {column!r}"

    def found(self) -> Found:
        """Return the records. Raises OwnRecordsError."""
        if not self._n_records:
            raise OwnRecordsError(self._file, "at least one record", "none")
        described = self._described
        each = [targets(self._labels[name], described.wanted, self._cells(name, 0)) for name in self.labels]
        labels, names = each[0]
        if described.has_label_rows:
            labels = np.stack([numbers for numbers, _ in each], axis=1).astype(np.float32)
        columns = () if described.columns else tuple(column.name for column in self.columns)
        return Found(Records(np.concatenate(self._features), labels), self.at, names, columns)


def _none_of(name: str, header: Sequence[str]) -> str:
    """Return that no column has this name, and which is written almost so; no cell of a file without a header."""
    found = f"none of that name among {len(header)}"
    near = [i for i, other in enumerate(header, start=1) if _folded(other) == _folded(name)]
    return f"{found}; column {near[0]}'s differs in spaces, case or Unicode form alone" if near else found


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _require_header(header: Sequence[str], file: object) -> None:
    if len(header) > _MOST_COLUMNS:
        raise OwnRecordsError(file, f"at most {_MOST_COLUMNS} columns", f"{len(header)}")
    before: set[str] = set()
    for i, name in enumerate(header):
        if not name:
            raise OwnRecordsError(file, "a header that names every column", f"no name for column {i + 1}")
        if len(name) > LONGEST_NAME:
            raise OwnRecordsError(
                file, f"names of at most {LONGEST_NAME} characters", f"{len(name)} in that of column {i + 1}"
            )
        if name in before:
            raise OwnRecordsError(file, "columns of different names", f"column {i + 1} named as one before it")
        before.add(name)


def _features(cells: Cells, column: Column, at: At, hint: str = "") -> NDArray[np.float32]:
    """Return a column's features, (n, width). hint: what else a column without numbers needs. Raises
    OwnRecordsError."""
    if column.categories:
        return _one_hot(cells, column.categories, at)
    numbers = _numbers(cells, column.missing, at, hint)
    _refuse(np.isnan(numbers), "a finite number", "NaN, which is no empty cell", at)
    _refuse(np.isinf(numbers), "a finite number", "an infinite one", at)
    if column.min is not None:
        _refuse(numbers < column.min, f"a number of at least {column.min:g}", "a smaller one", at)
    if column.max is not None:
        _refuse(numbers > column.max, f"a number of at most {column.max:g}", "a larger one", at)
    with np.errstate(over="ignore"):
        found = ((numbers - column.mean) / column.std).astype(np.float32)
    _refuse(~np.isfinite(found), "a number that float32 holds", "a larger one", at)
    return found.reshape(-1, 1)


def _refuse(mask: NDArray[np.bool_], expected: str, found: str, at: At) -> None:
    if mask.any():
        raise OwnRecordsError(at(first(mask)), expected, found)


def _numbers(cells: Cells, missing: float | None, at: At, hint: str) -> NDArray[np.float64]:
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64)
    with suppress(TypeError, ValueError, OverflowError):  # the common case; what fails is found below
        if "_" not in ",".join(cast("Sequence[str]", cells)):
            return np.fromiter(map(float, cast("Sequence[str]", cells)), np.float64, len(cells))
    found = np.empty(len(cells))
    for row, cell in enumerate(cells):
        if cell is None or cell == "":
            if missing is None:
                raise OwnRecordsError(at(row), "a number", f"{_MISSING}{_STANDS_FOR}")
            found[row] = missing
            continue
        try:
            found[row] = float(cell)  # type: ignore[arg-type]  # whatever is no number is refused
            if isinstance(cell, str) and "_" in cell:  # Python's notation, not a table's
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            why = _COMMA if isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell) else hint
            raise OwnRecordsError(at(row), "a number", f"{_NO_NUMBER}{why}") from None
    return found


def _one_hot(cells: Cells, categories: Sequence[str], at: At) -> NDArray[np.float32]:
    index = {name: i for i, name in enumerate(categories)}
    found = np.zeros((len(cells), len(categories)), dtype=np.float32)
    for row, cell in enumerate(cells):
        text = _text(cell)
        if text not in index:
            what = "another text" if text else _MISSING
            raise OwnRecordsError(at(row), f"one of the {len(categories)} categories", what)
        found[row, index[text]] = 1.0
    return found


def _text(cell: object) -> str:
    """Return a cell as text: whole numbers without a point, as labels have them."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", errors="replace")
    if isinstance(cell, (float, np.floating)) and float(cell).is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell)
