"""Names that files can have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LONGEST_NAME: Final = 255
"""Bytes of a file's or a folder's name, at most: Linux has no longer ones."""


def fault_of(path: Path) -> str | None:
    """Return why no file can have this path; None where one can."""
    try:
        names = [len(os.fsencode(name)) for name in path.parts]
    except UnicodeEncodeError:
        return "a character that no file name has"
    if "\0" in str(path):
        return "a NUL, which no file name has"
    longest = max(names, default=0)
    return f"a name of {longest} bytes, above {_LONGEST_NAME}" if longest > _LONGEST_NAME else None
