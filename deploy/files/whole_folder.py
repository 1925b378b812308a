"""A folder that appears with everything in it, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


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
