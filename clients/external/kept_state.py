"""Keep what a foreign trainer leaves for its next process: Flower's `context.state`, as bytes that nobody here reads.

It may hold records, so its file is this client's alone, in a folder that no trainer sees. The file begins with a digest
of the task, the trainer and the state. Another task, another trainer or half a file begins with nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import structlog

from precad.clients.errors import StateFileError

LEAST_BYTES: Final = 64 << 20
"""A state may be so long for every model; for larger models, `MODELS` times as long as they are."""
MODELS: Final = 4
_DIGEST_BYTES: Final = 32
log = structlog.get_logger(__name__)


def most_bytes(n_parameters: int) -> int:
    """Return how long a state may be, beside so many float32 parameters."""
    return max(LEAST_BYTES, MODELS * 4 * n_parameters)


class KeptState:
    """One client's state. Without a file it lasts as long as this object."""

    def __init__(self, file: Path | None = None, owner: bytes = b"") -> None:
        """owner: a digest of the task and the trainer. Reads and writes nothing yet."""
        self._file, self._owner = file, owner
        self._state: bytes | None = None

    def load(self, most: int) -> bytes:
        """Return what was left, at most so many bytes; empty where nothing was. Raises StateFileError."""
        if self._state is None:
            self._state = b"" if self._file is None else self._read(self._file, most)
        return self._state

    def store(self, state: bytes) -> None:
        """Keep a state in place of the last. A disk that does not take it leaves the last one, and a log line."""
        self._state = state
        if self._file is None:
            return
        try:
            _replace(self._file, self._digest(state) + state)
        except OSError as error:
            log.warning("client.trainer_state_not_kept", file=str(self._file), reason=error.strerror)

    def _read(self, file: Path, most: int) -> bytes:
        try:
            with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as opened:
                content = opened.read(_DIGEST_BYTES + most + 1)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateFileError(f"{file}: expected a file that can be read, found {error.strerror}") from None
        digest, state = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if len(state) <= most and digest == self._digest(state):
            return state
        log.warning("client.trainer_state_left_out", file=str(file), reason="of another task or trainer, or not whole")
        return b""

    def _digest(self, state: bytes) -> bytes:
        return hashlib.sha256(self._owner + hashlib.sha256(state).digest()).digest()


def _replace(file: Path, content: bytes) -> None:
    """Put a new file in place of the old one at once, for its owner alone. Raises OSError, and leaves no half of it."""
    partial = file.with_suffix(f"{file.suffix}.new")
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(partial, flags, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
