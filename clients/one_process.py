"""Keep a client of a task to one process: two would split its sessions, and rounds would wait for either."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from precad.clients.errors import StateFileError
from precad.mpc.errors import raised_as


@contextmanager
def one_process(state_dir: Path, client: str, config_digest: bytes) -> Iterator[None]:
    """Hold the client's file for this task, and remove it in the end. A process that is killed lets go of it too.

    Raises StateFileError where another process holds it, or the folder takes no file.
    """
    file = state_dir / f"{client}-{config_digest.hex()[:16]}.lock"
    expected = "client.state_dir: expected a folder to write to"
    with raised_as(StateFileError, OSError, f"{expected}, found {state_dir}"):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        while (descriptor := _held(file, client)) is None:
            pass
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # before another process can hold it
        os.close(descriptor)


def _held(file: Path, client: str) -> int | None:
    """Return the file's descriptor; None where who held it removed it meanwhile. Raises StateFileError, OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), file.lstat()):
                return descriptor
    except BlockingIOError:
        os.close(descriptor)
        expected = f"client.state_dir: expected no other process of client {client} in this task"
        raise StateFileError(f"{expected}, found one that holds {file}") from None
    os.close(descriptor)
    return None
