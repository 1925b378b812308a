"""Keep a client of a task to one process: two would split its sessions, and rounds would wait for either."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precad.clients.errors import StateFileError
from precad.mpc.errors import raised_as


@contextmanager
def one_process(state_dir: Path, client: str, config_digest: bytes) -> Iterator[None]:
    """Hold the client's file for this task, which the system lets go of when the process ends, however it ends.

    Raises StateFileError where another process holds it, or the folder takes no file.
    """
    file = state_dir / f"{client}-{config_digest.hex()[:16]}.lock"
    with raised_as(StateFileError, OSError, f"client.state_dir: expected a folder to write to, found {state_dir}"):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _take(descriptor, client, file)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, client: str, file: Path) -> None:
    expected = f"client.state_dir: expected no other process of client {client} in this task"
    with raised_as(StateFileError, BlockingIOError, f"{expected}, found one that holds {file}"):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
