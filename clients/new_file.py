"""A new file that is not left behind half written, where the writing fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is not there yet. After an error it is not there either: half of it would block the next try.

    Raises OSError, FileExistsError among them.
    """
    with path.open("xb") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            path.unlink()
            raise
