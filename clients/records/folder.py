"""Where data sets lie that are not bundled, and the proof that a file is the one it should be."""

from __future__ import annotations

import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from precad.clients.errors import CorruptDataError, MissingDataError

VARIABLE: Final = "PRECAD_DATA"
"""Environment variable that names the folder."""
LAYOUT: Final = "docs/guides/data.md says what the folder holds"


def data_folder() -> Path | None:
    """Return the folder that the environment names; None where it names none. Raises MissingDataError when it is not
    there."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if not Path(name).is_dir():
        raise MissingDataError(f"{VARIABLE}: expected a folder, found {name!r}; {LAYOUT}")
    return Path(name)


def find(name: str) -> Path | None:
    """Return the file of that name below the folder, as it is or with `.gz` behind it; None where there is none."""
    folder = data_folder()
    if folder is None:
        return None
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_verified(path: Path, sha256: str) -> bytes:
    """Return the file's content, unpacked if it is gzip. Raises CorruptDataError unless the content has that
    SHA-256."""
    data = read_unpacked(path)
    _require_sha256(path, hashlib.sha256(data).hexdigest(), sha256)
    return data


def read_unpacked(path: Path) -> bytes:
    """Return a file's content, unpacked if it is gzip, unverified. Raises CorruptDataError where it cannot be read."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptDataError(path, f"it cannot be read ({error})") from None


def read_members(archive: Path, sha256: str, members: Sequence[str]) -> list[bytes]:
    """Return files of a zip archive, unpacked if they are gzip. Raises CorruptDataError unless it has that SHA-256."""
    try:
        with archive.open("rb") as file:
            _require_sha256(archive, hashlib.file_digest(file, "sha256").hexdigest(), sha256)
            with zipfile.ZipFile(file) as packed:
                found = ((name, packed.read(name)) for name in members)
                return [gzip.decompress(data) if name.endswith(".gz") else data for name, data in found]
    except (OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise CorruptDataError(archive, f"it cannot be read ({error})") from None


def _require_sha256(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise CorruptDataError(path, f"expected content with SHA-256 {expected[:16]}.., found {found[:16]}..")


def missing(dataset: str, files: str, *, can_download: bool = True) -> MissingDataError:
    """Return the error for a data set that is not there, with what helps."""
    remedy = f"set {VARIABLE} to a folder that holds {files} ({LAYOUT})"
    if can_download:
        remedy += '; or install "precad[datasets]" from where precad came from, and set client.download = true'
    return MissingDataError(f"data set {dataset!r} is not there: {remedy}")
