"""Arrays and map-style data sets as records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import OwnRecordsError
from precad.clients.own_code import Unspoken
from precad.clients.records.own.found import At, Found, first
from precad.clients.records.own.labels import Wanted, targets
from precad.clients.records.own.pictures import is_picture, pixels_of
from precad.clients.records.records import Records, by_record

if TYPE_CHECKING:
    from torch import Tensor

Kind = Callable[[NDArray[Any]], bool]
"""Tell apart two kinds of arrays that do not stand in one."""
_IMAGE_AXES, _TOKEN_AXES = 4, 2
_MOST_RECORDS = 10**9
"""Bound the length of a data set that is read one by one: it may be a mistake, and reading would not end."""
_NO_ARRAY = "something of which NumPy makes none, with"
_EXPECTED = "a map-style data set of (input, label), or arrays (inputs, labels)"


def from_value(value: object, where: object, wanted: Wanted) -> Found:
    """Return the records that a data set or two arrays hold; rows count from 0, as theirs do.

    where: how messages call it. Raises OwnRecordsError.
    """
    if value is None:
        raise OwnRecordsError(where, f"records, {_EXPECTED}", "none")
    if isinstance(value, Records):
        return Found(value, lambda row: f"{where}, row {row} (from 0)", wanted.names)
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(_is_array(part) for part in value):
        return from_arrays(value[0], value[1], where, wanted)
    if not (hasattr(value, "__getitem__") and hasattr(value, "__len__")) or isinstance(value, (str, bytes, Mapping)):
        raise OwnRecordsError(where, _EXPECTED, f"a {type(value).__name__}")
    pairs = [_pair(value, row, where) for row in range(_length(value, where))]
    return from_rows([pair[0] for pair in pairs], [pair[1] for pair in pairs], where, wanted)


def from_rows(inputs: Sequence[object], labels: Sequence[object], where: object, wanted: Wanted) -> Found:
    """Return the records of one input and one label each, all of one shape. Raises OwnRecordsError."""
    if not inputs:
        raise OwnRecordsError(where, "at least one record", "none")
    by_type = _is_fractional if wanted.numbers is None else None  # one record must not decide for others
    return from_arrays(_stacked(inputs, where, "an input", _is_image), _together(labels, where, by_type), where, wanted)


def _together(labels: Sequence[object], where: object, by_type: Kind | None) -> object:
    """Return labels as one array where each is an array, and else as they are. Raises OwnRecordsError."""
    if not any(_is_changeable(label) for label in labels):
        return list(labels)
    return _stacked(labels, where, "a label", by_type, part=", label")


def _stacked(values: Sequence[object], where: object, what: str, kind: Kind | None, *, part: str = "") -> NDArray[Any]:
    """Return values as one array, a row for each, if all are of one shape and kind. Raises OwnRecordsError."""
    rows: list[NDArray[Any]] = []
    for row, value in enumerate(values):
        at = f"{where}, row {row} (from 0)"
        array = array_of(value, at + part)
        if rows and array.shape != rows[0].shape:
            raise OwnRecordsError(at, f"{what} of shape {rows[0].shape}, as before it", f"shape {array.shape}")
        if rows and kind is not None and kind(array) != kind(rows[0]):
            types = rows[0].dtype.name, array.dtype.name
            raise OwnRecordsError(at, f"{what} of {types[0]}, as before it", types[1])
        rows.append(array)
    return np.stack(rows)


def _is_image(array: NDArray[Any]) -> bool:
    """Tell whether an input is of bytes up to 255, or of numbers up to 1."""
    return array.dtype == np.uint8 and array.ndim == _IMAGE_AXES - 1


def _is_fractional(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f"


def from_arrays(inputs: object, labels: object, where: object, wanted: Wanted) -> Found:
    """Return the records of two arrays of one length. Raises OwnRecordsError."""

    def at(row: int) -> str:
        return f"{where}, row {row} (from 0)"

    features = _features(array_of(inputs, f"{where}, inputs"), where, at)
    all_labels = labels if isinstance(labels, list) else _labels_of(labels, f"{where}, labels")
    if isinstance(all_labels, np.ndarray) and all_labels.ndim == 0:
        raise OwnRecordsError(where, "a label for each input", "one for all")
    if len(all_labels) != len(features):
        raise OwnRecordsError(where, f"a label for each of {len(features)} inputs", f"{len(all_labels)}")
    found, names = targets(all_labels, wanted, at)
    return Found(Records(features, found), at, names)


def _labels_of(labels: object, at: str) -> NDArray[Any] | list[Any]:
    """Return labels as an array, or as a list where they are texts or objects.

    Each label of a list is looked at by itself, as in a column of pandas. Raises OwnRecordsError.
    """
    with _raising(at, "an array", _NO_ARRAY):
        found = labels if isinstance(labels, np.ma.MaskedArray) or _is_tensor(labels) else np.asarray(labels)
    if isinstance(found, np.ndarray) and found.dtype.kind in "OSU" and found.ndim == 1:
        return list(found)
    return array_of(found, at)


def array_of(value: object, at: str) -> NDArray[Any]:
    """Return a value as an array of numbers. Raises OwnRecordsError."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise OwnRecordsError(at, "values for all of it", "masked ones")
    with _raising(at, "an array", _NO_ARRAY):
        if _is_tensor(value):
            own = value.detach().cpu()
            value = (own.float() if str(own.dtype) == "torch.bfloat16" else own).numpy()
        found = pixels_of(value, at) if is_picture(value) else np.asarray(value)
    if found.dtype.kind not in "biuf":
        raise OwnRecordsError(at, "numbers of one shape", f"an array of {found.dtype.name}")
    return found


def _features(
    inputs: NDArray[Any], where: object, at: At
) -> NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int64]:
    """Return features as models take them: images, tokens or numbers. Raises OwnRecordsError."""
    if inputs.ndim == 0 or len(inputs) == 0:
        raise OwnRecordsError(where, "at least one record", "none")
    if inputs.size == 0:
        raise OwnRecordsError(where, "inputs that hold something", f"shape {inputs.shape}")
    inputs = inputs.reshape(-1, 1) if inputs.ndim == 1 else inputs
    if inputs.dtype == np.uint8 and inputs.ndim == _IMAGE_AXES:
        return np.ascontiguousarray(inputs)
    if inputs.dtype == np.int64 and inputs.ndim == _TOKEN_AXES:
        return np.ascontiguousarray(inputs)
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(inputs, dtype=np.float32)
    is_bad: NDArray[np.bool_] = np.any(~np.isfinite(by_record(numbers)), axis=1)
    if is_bad.any():
        raise OwnRecordsError(at(first(is_bad)), "finite numbers that float32 holds", "another")
    return numbers


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    """Tell whether a value is a tensor, of which there is none before somebody imports PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: object) -> bool:
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return value.ndim > 0
    return isinstance(value, list) or hasattr(value, "__array__")


def _length(value: Any, where: object) -> int:
    with _raising(where, _EXPECTED, "one whose length raises"):
        length: int = len(value)
    if length > _MOST_RECORDS:
        raise OwnRecordsError(where, f"at most {_MOST_RECORDS} records", f"{length}")
    return length


def _pair(value: Any, row: int, where: object) -> tuple[object, object]:
    """Return one record of a data set. Raises OwnRecordsError, which says nothing of what the record holds."""
    at = f"{where}, row {row} (from 0)"
    with _raising(at, "a record", "that reading it raises"):
        found = value[row]
    if not isinstance(found, (tuple, list)):
        raise OwnRecordsError(at, "a pair (input, label)", f"a {type(found).__name__}")
    if len(found) != 2:
        raise OwnRecordsError(at, "a pair (input, label)", f"a {type(found).__name__} of {len(found)}")
    label = _kept(found[1], f"{at}, label") if _is_changeable(found[1]) else found[1]
    return _kept(found[0], at), label


def _kept(value: object, at: str) -> NDArray[Any]:
    """Return a value of its own: a data set may fill the same memory with its next record. Raises OwnRecordsError."""
    return np.array(array_of(value, at))


def _is_changeable(label: object) -> bool:
    return isinstance(label, (np.ndarray, list)) or _is_tensor(label)


def _raising(where: object, expected: str, found: str) -> Unspoken:
    """Name the kind of an error, and nothing of what it says."""
    return Unspoken(lambda error: OwnRecordsError(where, expected, f"{found} {type(error).__name__}"))
