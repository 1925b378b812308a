"""Arrays that NumPy saved in one file: inputs, and labels in the array that `client.label` names."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import OwnRecordsError
from precad.clients.records.own.arrays import from_arrays
from precad.clients.records.own.described import OwnRecords
from precad.clients.records.own.found import Found, read_as

DEFAULT_LABEL = "labels"
_LONGEST = 80
"""Characters of arrays' names in a message."""


def read_npz(described: OwnRecords) -> Found:
    """Return the records of an .npz file. Raises MissingDataError, OwnRecordsError."""
    path, wanted = described.path(), described.label_names(DEFAULT_LABEL)
    with read_as(path, "an .npz file"):
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise OwnRecordsError(path, "an .npz file, as numpy.savez writes it", "something else")
        _require_fits(path)
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            if len(names) != 1 + len(wanted) or not set(wanted) < set(names) or len(set(names)) < len(names):
                number = "two" if len(wanted) == 1 else f"{1 + len(wanted)}"
                which = f"{number} arrays, {_listed(wanted)} (client.label)"
                raise OwnRecordsError(path, which, _found(names))
            inputs, *labels = (file[name] for name in (*(n for n in names if n not in wanted), *wanted))
            for array in (inputs, *labels):
                if not isinstance(array, np.ndarray):
                    raise OwnRecordsError(path, "arrays", "a member that is none")
    return from_arrays(inputs, _together(labels, described, path), path, described.wanted)


def _listed(wanted: tuple[str, ...]) -> str:
    return f"one of them {wanted[0]!r}" if len(wanted) == 1 else f"among them {', '.join(map(repr, wanted))}"


def _found(names: Sequence[str]) -> str:
    """Return the names of arrays in a message, the first ones of many."""
    text = ", ".join(map(repr, names))
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... of {len(names)}") or "none"


def _together(labels: list[NDArray[Any]], described: OwnRecords, path: Path) -> NDArray[Any]:
    """Return (n,) or, of a list of arrays (n,), (n, k). Raises OwnRecordsError."""
    if not described.has_label_rows:
        return labels[0]
    for array in labels:
        if array.shape != labels[0].shape or array.ndim != 1:
            raise OwnRecordsError(path, "label arrays of one shape (n,)", f"shape {array.shape}")
    return np.stack(labels, axis=1)


def _require_fits(path: Path) -> None:
    """Refuse what unpacks to more than this machine's memory. Raises OwnRecordsError."""
    with zipfile.ZipFile(path) as packed:
        size = sum(member.file_size for member in packed.infolist())
    if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise OwnRecordsError(path, "arrays that fit in memory", f"{size / 2**30:.0f} GiB")
