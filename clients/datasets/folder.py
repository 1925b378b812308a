"""Where data sets lie that are not bundled, and the proof that a file is the one it should be."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Final

from clients.errors import CorruptDataError, MissingDataError

VARIABLE: Final = "PRECAD_DATA"
"""Environment variable that names the folder."""
LAYOUT: Final = "docs/data.md says what the folder holds"


def data_folder() -> Path | None:
    """The folder that the environment names; None where it names none. Raises MissingDataError when it is not there."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if not Path(name).is_dir():
        raise MissingDataError(f"{VARIABLE}: expected a folder, found {name!r}; {LAYOUT}")
    return Path(name)


def find(name: str) -> Path | None:
    """The file of that name below the folder, as it is or with `.gz` behind it; None where there is none."""
    folder = data_folder()
    if folder is None:
        return None
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_verified(path: Path, sha256: str) -> bytes:
    """The file's content, unpacked if it is gzip. Raises CorruptDataError unless the content has that SHA-256."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptDataError(path, f"it cannot be read ({error})") from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptDataError(path, f"expected content with SHA-256 {sha256[:16]}.., found {found[:16]}..")
    return data


def missing(dataset: str, files: str, *, can_download: bool = True) -> MissingDataError:
    """What to say when a data set is not there, with what helps."""
    remedy = f"set {VARIABLE} to a folder that holds {files} ({LAYOUT})"
    if can_download:
        remedy += '; or pip install "precad[datasets]" and set client.download = true'
    return MissingDataError(f"data set {dataset!r} is not there: {remedy}")
