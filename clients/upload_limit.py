"""How often a client uploads for one model, whatever the servers ask for, and however often it is started.

A server that deviates may learn a bit of every upload and hang up before the round is committed. The same clients are
then asked for the same model again. So a client counts, and limits, its uploads for each pair of model and number of
committed rounds. Both servers have to state that pair alike. Task ids and round numbers do not count: servers choose
them.

Rounds that are committed stay so. Servers that both state fewer than before, or another model after as many, were put
back to an old state, or begun anew. Their ledgers lack charges: the client stops.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from precad.clients.errors import ArgumentError, RestoredServersError, StateFileError, UploadLimitError
from precad.clients.state_lines import append, locked, whole_lines
from precad.mpc.errors import raised_as
from precad.protos.task.proved_fields import MOST_UPLOADS_PER_MODEL
from precad.protos.task.task import Task

DEFAULT_UPLOADS_PER_MODEL: Final = 3
UPLOADS, EVALUATIONS = ".uploads", ".evaluations"
"""Endings of the files of a client's uploads, and of its answers to evaluations."""
_LINE: Final = re.compile(rb"[0-9a-f]{64} (0|[1-9][0-9]{0,19}) [0-9a-f]{64}")


class Payer(Protocol):
    """Pay for each upload (`precad.clients.payments`)."""

    def require_room(self) -> None:
        """Raise ClientError where one more upload cannot be paid."""

    def pay(self) -> None:
        """Pay one upload, durably, on return. Raises ClientError; then nothing may leave."""


class UploadLimit:
    """Limit the uploads of one client in one task, as its own configuration says. Blocking; a thread at a time.

    With a file the limit holds over restarts and between processes: a line for every upload, on disk before the upload
    leaves.
    """

    def __init__(
        self,
        client: str,
        config_digest: bytes,
        *,
        most: int,
        file: Path | None = None,
        payer: Payer | None = None,
        beside: Path | None = None,
    ) -> None:
        """Makes the file, and folders to it. payer: of each upload, if anybody. Raises StateFileError.

        beside: the file of the client's uploads of another kind in the task, after whose rounds it uploaded as well.
        """
        self._payer, self._beside = payer, beside
        self._client, self._config_digest, self.most, self._file = client, config_digest, most, file
        self._unkept: list[bytes] = []
        if file is not None:
            with _using(file):
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with locked(file) as descriptor:
                    _lines(file, descriptor)

    def require_room(self, model_digest: bytes, n_committed: int) -> None:
        """Refuse what the limit would refuse, before work is done in vain.

        Raises UploadLimitError, StateFileError, HolderLimitReachedError.
        """
        if self._payer is not None:
            self._payer.require_room()
        self._require_room(self._counted(), self._line(model_digest, n_committed), n_committed)

    def require_same_past(self, model_digest: bytes, n_committed: int) -> None:
        """Refuse servers that were put back, or begun anew, whether or not the limit has room.

        Raises RestoredServersError, StateFileError.
        """
        self._require_same_past(self._counted(), self._line(model_digest, n_committed), n_committed)

    def count(self, model_digest: bytes, n_committed: int) -> None:
        """Count one upload, and have it paid, before a byte of it leaves; on disk on return.

        Raises as `require_room`; then nothing may leave.
        """
        self._count(model_digest, n_committed)
        if self._payer is not None:
            self._payer.pay()

    def _count(self, model_digest: bytes, n_committed: int) -> None:
        line = self._line(model_digest, n_committed)
        if self._file is None:
            self._require_room(self._unkept, line, n_committed)
            self._unkept.append(line)
            return
        with _using(self._file), locked(self._file) as descriptor:
            lines = _lines(self._file, descriptor)
            self._require_room(lines, line, n_committed)
            append(descriptor, lines, line)

    def _counted(self) -> Sequence[bytes]:
        """Return the lines of all uploads so far."""
        if self._file is None:
            return self._unkept
        with _using(self._file), locked(self._file) as descriptor:
            return _lines(self._file, descriptor)

    def _line(self, model_digest: bytes, n_committed: int) -> bytes:
        return f"{self._config_digest.hex()} {n_committed} {model_digest.hex()}".encode()

    def _require_same_past(self, lines: Sequence[bytes], line: bytes, n_committed: int) -> None:
        if (seen := _most_rounds(lines, self._config_digest)) > n_committed:
            raise RestoredServersError(self._client, found=n_committed, seen=seen, file=self._file)
        if self._beside is not None and (seen := rounds_seen(self._beside, self._config_digest)) > n_committed:
            raise RestoredServersError(self._client, found=n_committed, seen=seen, file=self._beside)
        after_as_many = line[: -len(line.split()[2])]
        if any(one.startswith(after_as_many) and one != line for one in lines):
            raise RestoredServersError(self._client, found="another model", seen=n_committed, file=self._file)

    def _require_room(self, lines: Sequence[bytes], line: bytes, n_committed: int) -> None:
        self._require_same_past(lines, line, n_committed)
        if (n_uploads := lines.count(line)) >= self.most:
            raise UploadLimitError(
                self._client, n_uploads=n_uploads, n_committed=n_committed, most=self.most, file=self._file
            )


def rounds_seen(file: Path, config_digest: bytes) -> int:
    """Return the most committed rounds that both servers stated when the file's client uploaded in this task; 0 for
    none. Changes nothing. Raises StateFileError."""
    if not file.exists():
        return 0
    with _using(file), file.open("rb") as uploads:
        return _most_rounds(_lines(file, uploads.fileno()), config_digest)


def _most_rounds(lines: Sequence[bytes], config_digest: bytes) -> int:
    of_task = config_digest.hex().encode()
    return max((int(line.split()[1]) for line in lines if line.startswith(of_task)), default=0)


def require_covered(task: Task, most: int) -> None:
    """Raises ArgumentError where mode `proved` says nothing of as many uploads for one model, whose delta counts m."""
    if task.is_proved and most > MOST_UPLOADS_PER_MODEL:
        raise ArgumentError(
            f"client.uploads_per_model: expected at most {MOST_UPLOADS_PER_MODEL} in mode 'proved', found {most}"
        )


def require_writable(folder: Path) -> None:
    """Raises StateFileError where a client could not count its uploads. Changes nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise StateFileError(f"client.state_dir: expected a folder to write to, found {existing}")


def _lines(file: Path, descriptor: int) -> list[bytes]:
    """All that were written to their end: what a process died over has not left. Raises StateFileError, OSError."""
    lines = whole_lines(descriptor)
    for number, line in enumerate(lines, start=1):
        if _LINE.fullmatch(line) is None:
            raise StateFileError(
                f"client.state_dir: expected a configuration's digest, a number and a model's digest in line {number} "
                f"of {file}, found another line; nothing is uploaded until its uploads are known again"
            )
    return lines


def _using(file: Path) -> AbstractContextManager[None]:
    """Raise StateFileError for a file that the system refuses."""
    expected = "client.state_dir: expected a file of uploads to read and write"
    return raised_as(StateFileError, OSError, f"{expected}, found {file}")
