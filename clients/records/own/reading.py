"""Read a source, whichever kind it is, and check it as a whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Final

from precad.clients.app import App
from precad.clients.config import FILE_KINDS
from precad.clients.errors import OwnRecordsError
from precad.clients.own_code import Unspoken, folders, imported
from precad.clients.records.own.arrays import from_value
from precad.clients.records.own.csv_file import read_csv
from precad.clients.records.own.described import CLIENT, TEST, OwnRecords
from precad.clients.records.own.found import Found, read_as
from precad.clients.records.own.image_folder import read_folder
from precad.clients.records.own.npz_file import read_npz
from precad.clients.records.own.parquet_file import read_parquet
from precad.clients.records.own.saved_dataset import read_dataset
from precad.clients.records.records import Records

_READERS: Final[Mapping[str, Callable[[OwnRecords], Found]]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "npz": read_npz,
    "folder": read_folder,
    "datasets": read_dataset,
}
assert tuple(_READERS) == FILE_KINDS


def load(source: OwnRecords) -> Records:
    """Return the records of a source, in its order. Raises DataError, ExtensionError."""
    return read(source).records


def read(source: OwnRecords) -> Found:
    """Return the records of a source with the place of each. Raises DataError, ExtensionError."""
    reader = _READERS.get(source.kind, _read_function)
    with read_as(source.source, "records"):
        found = reader(source)
    _require_shape(found, source.shape, source.source)
    return found


def read_given(given: object, source: OwnRecords) -> Found:
    """Return what is given in the place of a source: another source, a function of no arguments, or the data.

    Raises DataError, ExtensionError.
    """
    if isinstance(given, App):
        return read_given(given.records, replace(source, label=given.label or source.label))
    if isinstance(given, str):
        if given == source.source:
            raise OwnRecordsError(given, "another source of records than itself", "itself")
        named = replace(source, source=given)
        return read(named.of_client(source.client) if source.client else named)
    where = source.source
    if isinstance(given, type) or (callable(given) and not hasattr(given, "__getitem__")):
        _require_no_arguments(given, where)
        raising = Unspoken(
            lambda error: OwnRecordsError(
                where, "a function that gives records", f"one that raises {type(error).__name__}"
            )
        )
        with raising:
            given = given()
    if isinstance(given, Coroutine):
        given.close()  # nobody awaits it, which Python would print
    return from_value(given, where, source.wanted)


def require_alike(test: Records, train: Records) -> None:
    """Refuse an app's records to measure on that differ in shape from those to train on. Raises OwnRecordsError."""
    for what, ours, theirs in (("records", train.features, test.features), ("labels", train.labels, test.labels)):
        if theirs.shape[1:] != ours.shape[1:]:
            raise OwnRecordsError(TEST, f"{what} of shape {ours.shape[1:]}, as in training", f"{theirs.shape[1:]}")
    if test.is_text != train.is_text:
        raise OwnRecordsError(TEST, f"records of {train.features.dtype}, as in training", f"{test.features.dtype}")


def _require_no_arguments(given: Callable[..., object], where: object) -> None:
    """Refuse a function that asks for some by their names, which its author wrote. Raises OwnRecordsError."""
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return  # a built-in function has no signature
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    asked = [one.name for one in parameters if one.default is one.empty and one.kind not in variadic]
    if asked:
        raise OwnRecordsError(where, "a function without arguments that gives records", f"one of {', '.join(asked)}")


def app_of(source: OwnRecords) -> App | None:
    """Return the app that a source names; None for any other source. Raises ExtensionError."""
    if source.kind in _READERS:
        return None
    found = imported(source.field, source.source, source.folders or folders())
    return found if isinstance(found, App) else None


def names_client(source: OwnRecords) -> bool:
    """Tell whether each client has a source of its own, by `{client}` in the name. Raises ExtensionError."""
    if CLIENT in source.source:
        return True
    app = app_of(source)
    return app is not None and isinstance(app.records, str) and CLIENT in app.records


def _read_function(source: OwnRecords) -> Found:
    """Return what a function, or an app, of the user's own gives. Raises ExtensionError, OwnRecordsError."""
    return read_given(imported(source.field, source.source, source.folders or folders()), source)


def _require_shape(found: Found, shape: tuple[int, ...], where: object) -> None:
    if shape and found.records.shape != shape:
        raise OwnRecordsError(where, f"records of shape {shape} (task.record_shape)", f"shape {found.records.shape}")
