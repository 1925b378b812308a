"""A file of sealed lines (`precad.dp.ledgers.lines`), open in one process, to which lines are added durably."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from precad.dp.errors import LedgerCorruptedError, LedgerInUseError
from precad.dp.ledgers.lines import FIRST_CHAIN, Fields, replay, require_same, seal

_ASKING_S: Final = 0.1
"""How long a lock that is not ours may be that of somebody who only asks."""


class SealedFile:
    """The lines after a header. Without a path their chain alone is kept, in memory."""

    def __init__(
        self,
        path: Path | None,
        header: Fields,
        entry: Callable[[Fields], None],
        kind: str,
        words: Collection[str] = (),
        *,
        only_reads: bool = False,
    ) -> None:
        """Open the file, or begin it with `header`, and give the fields of every other line to `entry`.

        The file is changed only once all complete lines are known to be good. An incomplete last line is cut off.
        Raises LedgerCorruptedError, LedgerInUseError, OSError.

        - kind: of file, for messages
        - words: fields in the header that another version may say otherwise, or not at all
        - only_reads: change nothing, and close the file again; it may lie where nothing can be written
        """
        self.chain = FIRST_CHAIN
        """The last line's. Whoever keeps it notices every later change of the lines so far."""
        self.is_closed = False
        self._kind: Final = kind
        self._words: Final = frozenset(words)
        self._fd = None if path is None else _open_to_read(path) if only_reads else _open_alone(path)
        try:
            if path is not None and self._fd is not None:
                self._load(path, None if only_reads else self._fd, header, entry)
        except BaseException:
            self.close()
            raise
        if only_reads:
            self.close()

    def append(self, *lines: Fields) -> None:
        """Add lines, in one write, on the disk when this returns. Raises OSError, which closes the file."""
        if self.is_closed:
            raise OSError(f"{self._kind} is closed")
        text, chain = b"", self.chain
        for fields in lines:
            line, chain = seal(fields, chain)
            text += line
        if self._fd is not None:
            try:
                if (written := os.write(self._fd, text)) != len(text):
                    raise OSError(f"lines of {len(text)} bytes must be written whole, only {written} were")
                os.fsync(self._fd)
            except OSError:
                self.close()
                raise
        self.chain = chain

    def close(self) -> None:
        """Give the file back, and take no more lines. Closing twice does nothing."""
        self.is_closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _load(self, path: Path, fd: int | None, header: Fields, entry: Callable[[Fields], None]) -> None:
        """Replay the whole lines. fd: where an incomplete end is cut off, and a file begun; None: neither."""
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        self.chain = replay(path, content[:end], lambda found: self._require_same(found, header), entry)
        if end == 0 and not seal(header, FIRST_CHAIN)[0].startswith(content):
            raise LedgerCorruptedError(path, line=1, problem=f"this is not the beginning of {self._kind}")
        if fd is None:
            return
        if end < len(content):
            os.ftruncate(fd, end)
            os.fsync(fd)
        if end == 0:
            self.append(header)
        sync_folder(path.parent)  # always: whoever began the file may have died before this

    def _require_same(self, found: Fields, ours: Fields) -> None:
        """Require every parameter in the header to be ours. Raises ValueError."""
        require_same(_without(self._words, found), _without(self._words, ours))


def _without(names: Collection[str], value: Any) -> Any:
    """Return what a header holds without these fields, which the tasks that it counts have as well."""
    if isinstance(value, dict):
        return {name: _without(names, one) for name, one in value.items() if name not in names}
    return [_without(names, one) for one in value] if isinstance(value, list) else value


class KeepsSealedFile:
    """A record of one kind, in one sealed file, to be used in a `with` statement."""

    _file: SealedFile

    def close(self) -> None:
        """Give the file back. Entries can still be read, none can be added. Closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sync_folder(folder: Path) -> None:
    """Make a new file's name as durable as its content. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_alone(path: Path) -> int:
    """Open `path` for appending, readable by its owner, locked against other processes until it is closed.

    Whoever asks `is_open`, or reads, has the lock for an instant, and is waited for.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    _lock(path, fd, fcntl.LOCK_EX)
    return fd


def _open_to_read(path: Path) -> int:
    """Open `path`, whose lines no process adds to until it is closed."""
    fd = os.open(path, os.O_RDONLY)
    _lock(path, fd, fcntl.LOCK_SH)
    return fd


def _lock(path: Path, fd: int, kind: int) -> None:
    deadline = time.monotonic() + _ASKING_S
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(fd)
                raise LedgerInUseError(path) from error
        else:
            return
        time.sleep(_ASKING_S / 10)


def is_open(path: Path) -> bool:
    """Tell whether a process has the file open, wherever that process is that sees it. Raises OSError."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
