"""Arrays that NumPy saved in one file: inputs, and labels in the array that `client.label` names."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from precad.clients.errors import OwnRecordsError
from precad.clients.records.own.arrays import from_arrays
from precad.clients.records.own.described import OwnRecords
from precad.clients.records.own.found import Found, read_as

DEFAULT_LABEL = "labels"


def read_npz(described: OwnRecords) -> Found:
    """Return the records of an .npz file. Raises MissingDataError, OwnRecordsError."""
    path, label = described.path(), described.label or DEFAULT_LABEL
    with read_as(path, "an .npz file"):
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise OwnRecordsError(path, "an .npz file, as numpy.savez writes it", "something else")
        _require_fits(path)
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            if len(names) != 2 or label not in names:
                raise OwnRecordsError(path, f"two arrays, one of them {label!r} (client.label)", f"{len(names)}")
            inputs, labels = (file[name] for name in (*(n for n in names if n != label), label))
            for array in (inputs, labels):
                if not isinstance(array, np.ndarray):
                    raise OwnRecordsError(path, "arrays", "a member that is none")
    return from_arrays(inputs, labels, path, described.wanted)


def _require_fits(path: Path) -> None:
    """Refuse what unpacks to more than this machine's memory. Raises OwnRecordsError."""
    with zipfile.ZipFile(path) as packed:
        size = sum(member.file_size for member in packed.infolist())
    if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise OwnRecordsError(path, "arrays that fit in memory", f"{size / 2**30:.0f} GiB")
