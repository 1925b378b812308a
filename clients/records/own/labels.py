"""Turn labels into targets of the loss: a class by number or by name, or numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import OwnRecordsError
from precad.clients.records.own.found import At, first
from precad.clients.records.records import NO_CLASS, by_record, is_class_of_place
from precad.protos.task.record_fields import LONGEST_NAME, is_name

_MOST_CLASSES = 65_536
A_NAME: Final = f"a class named by at most {LONGEST_NAME} printable characters"
ANOTHER_NAME: Final = "classes that differ in more than case, spaces and look-alikes, or names in task.class_names"
_MISSING: Final = frozenset(("na", "n/a", "#n/a", "null", "?", "-"))
"""How tables write that there is no label, whatever the case. A class of such a name is the task's to declare."""
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_POINT: Final = ".0"
"""How a column of whole numbers is written that once held an empty cell."""
_MOST_INFERRED = 1000
"""Names of classes that are taken from records, at most: a column with more is something else."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Say what labels are."""

    names: tuple[str, ...] = ()
    """Names of the classes; empty: labels are 0, 1, .. themselves."""
    infers: bool = False
    """Whether names may come from the records."""
    numbers: bool | None = False
    """Whether labels are numbers, of a loss such as the mean squared error, and no classes. None: their type decides,
    whatever their values. Numbers of a type with fractions are numbers; whole numbers and texts are classes."""


def targets(
    labels: Sequence[object] | NDArray[Any], wanted: Wanted, at: At
) -> tuple[NDArray[np.int64] | NDArray[np.float32], tuple[str, ...]]:
    """Return the target of each record, (n, ..), and the names of the classes, where they have names.

    Raises OwnRecordsError.
    """
    if wanted.numbers or (wanted.numbers is None and _have_fractions(labels, at)):
        return _measured(labels, at), ()
    if isinstance(labels, np.ndarray) and labels.ndim > 1:
        return _classes_by_place(labels, at), ()
    return class_numbers(labels, wanted.names, at, infers=wanted.infers)


def _classes_by_place(labels: NDArray[Any], at: At) -> NDArray[np.int64]:
    """Return for each place of a record its class, or that it has none, (n, ..). Raises OwnRecordsError."""
    if labels.dtype.kind not in "iu":
        raise OwnRecordsError(at(0), "one class as its label, or whole numbers", "several of another type")
    is_bad: NDArray[np.bool_] = np.any(by_record(~is_class_of_place(labels)), axis=1)
    if is_bad.any():
        raise OwnRecordsError(at(first(is_bad)), f"whole numbers from 0 on, or {NO_CLASS}, as its label", "another")
    return labels.astype(np.int64)


def _have_fractions(labels: Sequence[object] | NDArray[Any], at: At) -> bool:
    """Return whether labels are of a type with fractions. One record must not decide for others: all are of it, or none
    is. Raises OwnRecordsError."""
    if isinstance(labels, np.ndarray):
        return labels.dtype.kind == "f"
    are = np.array([isinstance(label, (float, np.floating)) for label in labels])
    if are.any() != are.all():
        raise OwnRecordsError(at(first(are != are[0])), "a label of the type of those before it", "another type")
    return bool(are.all())


def _measured(labels: Sequence[object] | NDArray[Any], at: At) -> NDArray[np.float32]:
    """Return labels as numbers, (n, ..). Raises OwnRecordsError."""
    found: NDArray[Any] = (
        labels if isinstance(labels, np.ndarray) and labels.dtype.kind in "biuf" else _rows_of_numbers(labels, at)
    )
    with np.errstate(over="ignore"):
        numbers = found.astype(np.float32)
    is_bad: NDArray[np.bool_] = np.any(~np.isfinite(by_record(numbers)), axis=1)
    if is_bad.any():
        raise OwnRecordsError(at(first(is_bad)), "a finite number that float32 holds as its label", "another")
    return numbers


def _rows_of_numbers(labels: Iterable[object], at: At) -> NDArray[np.float64]:
    """Return (n,), or (n, k) where each label is a list of as many numbers. Raises OwnRecordsError."""
    found: list[NDArray[np.float64]] = []
    for row, label in enumerate(labels):
        values = label if isinstance(label, (list, tuple, np.ndarray)) else None
        numbers = _number(label, at, row) if values is None else [_number(value, at, row) for value in values]
        found.append(np.array(numbers, dtype=np.float64))
        if found[row].shape != found[0].shape:
            raise OwnRecordsError(at(row), "as many numbers as its label as before it", "others")
    return np.stack(found) if found else np.empty(0)


def _number(label: object, at: At, row: int) -> float:
    if label is None or label == "":
        raise OwnRecordsError(at(row), "a number as its label", "an empty cell")
    try:
        if isinstance(label, str) and "_" in label:  # Python's notation, not a table's
            raise ValueError
        return float(label)  # type: ignore[arg-type]  # whatever is no number is refused
    except (TypeError, ValueError, OverflowError):
        raise OwnRecordsError(at(row), "a number as its label", "something that is none") from None


def class_numbers(
    labels: Sequence[object] | NDArray[Any], names: tuple[str, ...], at: At, *, infers: bool
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each record's class (n,), and the names of the classes, where they have names.

    Labels that are all whole numbers are classes themselves, unless the task names its classes.
    Raises OwnRecordsError.
    """
    written: Sequence[str] = [_written(label, at, row) for row, label in enumerate(labels)]
    if not names:
        if (numbers := _numbers(written)) is not None:
            return _in_range(numbers, at), ()
        _require_one_notation(written, at)
        if not infers:
            raise OwnRecordsError("task.class_names", "the names of the classes, as labels are not 0, 1, ..", "none")
        names = _sorted_names(written, at)
    elif not any(name.endswith(_POINT) for name in names) and _numbers(written) is not None:
        written = _without_point(written)  # as floats are read
    index = {name: number for number, name in enumerate(names)}
    for row, name in enumerate(written):
        if name not in index:
            raise OwnRecordsError(at(row), f"one of the {len(names)} classes of task.class_names", "another class")
    return np.array([index[name] for name in written], dtype=np.int64), names


def _written(label: object, at: At, row: int) -> str:
    """Return a label as text: whole numbers without a point. Raises OwnRecordsError."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bytes):
        try:
            label = label.decode()
        except UnicodeDecodeError:  # replaced, two classes would become one
            raise OwnRecordsError(at(row), "UTF-8 as its label", "another encoding") from None
    if isinstance(label, bool):
        label = int(label)
    if isinstance(label, float):
        if not label.is_integer():
            raise OwnRecordsError(at(row), "a class as its label", "a number that is not whole")
        label = int(label)
    if label is None or label == "":
        raise OwnRecordsError(at(row), "a label", "an empty cell")
    if not isinstance(label, (str, int)):
        raise OwnRecordsError(at(row), "a class as its label", f"a {type(label).__name__}")
    return str(label)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(written: Sequence[str]) -> list[int] | None:
    """Return the labels as numbers; None unless all are whole numbers in one notation: all 1, or all 1.0, never 01."""
    digits = _without_point(written)
    is_number = all(_WHOLE.fullmatch(text) for text in set(digits))
    return [int(text) if len(text) < 20 else _MOST_CLASSES for text in digits] if is_number else None


def _without_point(written: Sequence[str]) -> Sequence[str]:
    """Return labels without the point that each of them has; as they are, where one has none."""
    has_point = all(text.endswith(_POINT) for text in written)
    return [text.removesuffix(_POINT) for text in written] if has_point else written


def _in_range(numbers: Sequence[int], at: At) -> NDArray[np.int64]:
    for row, number in enumerate(numbers):
        if not 0 <= number < _MOST_CLASSES:
            raise OwnRecordsError(at(row), f"a class in [0, {_MOST_CLASSES - 1}] as its label", "a number outside")
    return np.array(numbers, dtype=np.int64)


def look_alike(names: Sequence[str]) -> int | None:
    """Return where the first name is that reads as another name before it: `Ill` after `ill`. None: nowhere."""
    rows: dict[str, int] = {}
    for at, name in enumerate(names):
        rows.setdefault(name, at)
    seen: dict[str, str] = {}
    for name, at in rows.items():
        if seen.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), name) != name:
            return at
    return None


def _require_one_notation(written: Sequence[str], at: At) -> None:
    """Raise OwnRecordsError for names among numbers, and for numbers that are not written as classes are."""
    are = np.array([_is_number(text) for text in written])
    if are.mean() > 0.5:  # numbers, of which one is a measurement, or no number
        has_point = np.array([text.endswith(_POINT) for text in written])
        is_whole = [_WHOLE.fullmatch(text.removesuffix(_POINT)) is not None for text in written]
        row = first((has_point != (has_point.mean() > 0.5)) | ~np.array(is_whole))
        raise OwnRecordsError(
            at(row), "a whole number as its label, or names in task.class_names", "something that is none"
        )
    if are.any():  # several notations of a class
        raise OwnRecordsError(
            at(first(are)), "a class by name, as others are, or names in task.class_names", "a number"
        )


def _sorted_names(written: Sequence[str], at: At) -> tuple[str, ...]:
    """Raises OwnRecordsError for a column that holds no classes."""
    for row, text in enumerate(written):
        if not is_name(text):
            raise OwnRecordsError(at(row), A_NAME, "another text")
        if text.casefold() in _MISSING:
            raise OwnRecordsError(at(row), "a label, or names in task.class_names", "a mark of a missing one")
    if (alike := look_alike(written)) is not None:
        raise OwnRecordsError(at(alike), ANOTHER_NAME, "one that reads as one before it")
    names = tuple(sorted(set(written)))
    if not 2 <= len(names) <= _MOST_INFERRED:
        expected = f"between 2 and {_MOST_INFERRED} classes from here on, or names in task.class_names"
        raise OwnRecordsError(at(0), expected, f"{len(names)}")
    return names
