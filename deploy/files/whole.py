"""Files and folders that appear with everything in them, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write in one step: whoever looks, or is left with the folder by a killed process, finds the old content or the
    new.

    Raises OSError; then the old one is there, and nothing else.
    """
    half_written = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with half_written.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half_written, path)
    except BaseException:
        half_written.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def appearing(folder: Path, *, mode: int = 0o700) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`, closed to other users. When the block has ended without an error, its
    files are on disk and it becomes `folder` with `mode`. Otherwise nothing is left.

    Raises OSError, also where a folder of this name that holds anything appeared meanwhile.
    """
    with contextlib.ExitStack() as undo:
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        undo.callback(shutil.rmtree, staging, ignore_errors=True)
        yield staging
        for path in (*staging.iterdir(), staging):
            _sync(path)
        staging.chmod(mode)
        staging.rename(folder)
        undo.pop_all()
        _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
