"""Keep what was written, in a file of this machine, for sinks that cannot be asked."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.tracking.scalars import Named


class Journal:
    """Names and rounds, a line for each time that something was written. One process at a time has it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where another process has it, or nobody can."""
        with refusing(OSError, f"--folder: expected a folder to write to, found {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(f"--folder: expected a folder that no other `precad track` uses, found {path}") from None
        self._path = path

    def read(self) -> set[Named]:
        """Return all of it. What a crash left of a line is none."""
        found: set[Named] = set()
        for line in self._path.read_bytes().splitlines():
            with suppress(ValueError, TypeError):
                found |= {(str(name), int(number)) for name, number in json.loads(line)}
        return found

    def append(self, written: Iterable[Named]) -> None:
        """Add a line, on disk when this returns."""
        os.write(self._file, b"\n" * self._is_torn() + json.dumps(sorted(written)).encode() + b"\n")
        os.fsync(self._file)

    def _is_torn(self) -> bool:
        """Tell whether the last line has no end."""
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)
