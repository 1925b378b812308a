"""The folder that colluding clients of a deployment share out of band: their honest updates, in the clear.

Whoever may write into it is a colluder, and what it holds is not believed. Only a regular file of the right size with
finite numbers is an update. Honest clients have no such folder.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from precad.clients.attacks.attack import Vector

GRACE_S: Final = 1.0
"""How long a colluder waits for others that say nothing: whoever is in a round is invited at about the same time."""
POLL_S: Final = 0.01
_WORD: Final = np.dtype("<f8")
_NAME_DIGITS: Final = 32
_N_KEPT: Final = 2
"""Rounds whose files stay."""
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Colluders:
    """One client's use of the folder. It puts its honest update there, and reads the others'.

    Files of the round before the last are removed by whoever wrote them. A folder that cannot be used leaves the client
    alone, which a line of the log says.
    """

    folder: Path
    client: str
    others: Sequence[str]
    dim: int
    patience_s: float
    """How long to wait for the updates of those that are in the round."""
    _keys: list[str] = field(default_factory=list, init=False)

    def announce(self, key: str) -> None:
        """Say that this client is in the round."""
        try:
            for folder in (self.folder, self.folder / key):
                folder.mkdir(mode=0o700, exist_ok=True)
            _write(self._file(key, self.client, "here"), b"")
        except OSError as error:
            self._complain(error)
        if key not in self._keys:
            self._keys.append(key)
        while len(self._keys) > _N_KEPT:
            self._forget(self._keys.pop(0))

    def gather(self, key: str, update: Vector) -> dict[str, Vector]:
        """Share an update (d,), and return those of all colluders in the round, in the order of ids.

        Who does not share in time is left out.
        """
        try:
            _write(self._file(key, self.client, "update"), update.astype(_WORD).tobytes())
        except OSError as error:
            self._complain(error)
            return {self.client: update}
        _wait(lambda: all(self._is_here(key, name) for name in self.others), GRACE_S)
        present = [name for name in self.others if self._is_here(key, name)]
        _wait(lambda: all(os.path.lexists(self._file(key, name, "update")) for name in present), self.patience_s)
        found = {self.client: update}
        for name in present:
            if (shared := self._read(key, name)) is None:
                log.warning("client.colluder_is_silent", client=self.client, other=name)
            else:
                found[name] = shared
        return dict(sorted(found.items()))

    def _is_here(self, key: str, client: str) -> bool:
        return os.path.lexists(self._file(key, client, "here"))

    def _read(self, key: str, client: str) -> Vector | None:
        """Return a finite update of the task's dimension; None where there is none."""
        n_bytes = self.dim * _WORD.itemsize
        try:
            descriptor = os.open(
                self._file(key, client, "update"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_size != n_bytes:
                    return None
                content = file.read(n_bytes)
        except OSError:
            return None
        found = np.frombuffer(content, _WORD).astype(np.float64) if len(content) == n_bytes else None
        return found if found is not None and bool(np.isfinite(found).all()) else None

    def _file(self, key: str, client: str, what: str) -> Path:
        """Return a file's place. Its name is made of a digest, as an id may be any text."""
        return self.folder / key / f"{hashlib.sha256(client.encode()).hexdigest()[:_NAME_DIGITS]}.{what}"

    def _forget(self, key: str) -> None:
        try:
            for what in ("here", "update"):
                self._file(key, self.client, what).unlink(missing_ok=True)
            (self.folder / key).rmdir()
        except OSError:  # others' files are there yet
            return

    def _complain(self, error: OSError) -> None:
        log.warning("client.colluders_unreachable", client=self.client, reason=error.strerror)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, in one step: nobody reads half of it, and no link is followed.

    Nothing is made durable: after a crash the round is over. Raises OSError.
    """
    half_written = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(half_written, flags, 0o600), "wb") as file:
            file.write(content)
        os.replace(half_written, path)
    except BaseException:
        half_written.unlink(missing_ok=True)
        raise


def _wait(is_done: Callable[[], bool], patience_s: float) -> None:
    """Return when it is done, or patience has ended."""
    ends_at = time.monotonic() + patience_s
    while not is_done() and time.monotonic() < ends_at:
        time.sleep(POLL_S)
