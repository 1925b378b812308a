"""Files of lines in which a client keeps what it has done: appended only, one writer at a time, on disk on return."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077
"""Everybody but the owner."""


@contextmanager
def locked(file: Path) -> Iterator[int]:
    """Return the file, made where there is none, which nobody else reads or writes meanwhile. Raises OSError."""
    is_new = not file.exists()
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _close_to_others(descriptor)
        if is_new:
            _keep_entries(file.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def whole_lines(descriptor: int) -> list[bytes]:
    """Return all that were written to their end: what a process died over has not left. Raises OSError."""
    *lines, _ = os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n")
    return lines


def append(descriptor: int, lines: list[bytes], line: bytes) -> None:
    """Write a line after these, and nothing of half a line after them. Raises OSError unless all of it is on disk."""
    os.ftruncate(descriptor, sum(map(len, lines)) + len(lines))
    data = line + b"\n"
    if os.write(descriptor, data) != len(data):
        raise OSError(0, "the disk is full")
    os.fsync(descriptor)


def _close_to_others(descriptor: int) -> None:
    """Take from others what they may do to a file of ours: one that was put back has the mode of its copy."""
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        with suppress(PermissionError):  # of a file system without modes
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)


def _keep_entries(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
