"""A file that appears with everything in it, in the place of an older one if there is one."""

from __future__ import annotations

import os
import secrets
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
