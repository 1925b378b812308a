"""Records as they were found, with the place of each, for errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import OwnRecordsError
from precad.clients.own_code import Unspoken
from precad.clients.records.records import Records

At = Callable[[int], str]
"""From a record's index to its file and row."""


@dataclass(frozen=True, slots=True)
class Found:
    """Hold the content of a source."""

    records: Records
    at: At
    class_names: tuple[str, ...] = ()
    """Names of the classes, where they have names."""
    columns: tuple[str, ...] = ()
    """Features of a table, in the file's order, where the task names no columns."""


def read_as(where: object, kind: str) -> Unspoken:
    """Turn whatever goes wrong while a library reads into an OwnRecordsError of one line, without its text."""

    def spoken(error: Exception) -> OwnRecordsError:
        if isinstance(error, MemoryError):
            return OwnRecordsError(where, "records that fit in memory", "more")
        if isinstance(error, OSError) and error.strerror:
            return OwnRecordsError(where, kind, error.strerror)
        return OwnRecordsError(where, kind, f"something that cannot be read as it ({type(error).__name__})")

    return Unspoken(spoken)


def first(mask: NDArray[np.bool_]) -> int:
    """Return the first index at which a mask is true."""
    return int(np.flatnonzero(mask)[0])
