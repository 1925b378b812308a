"""The models of the last committed rounds, each with the noisy sum that made it, one file per round.

A file is whole or not there: it is written beside its place, put on disk, and renamed. The noisy sum is public to both
servers; it is kept for the one that crashed before it had it (`servers.resumption`).
"""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpc.ring import RingArray
from servers.errors import SetupError, StoreError

Scalar = TypeVar("Scalar", bound=np.generic)

KEPT: Final = 2
"""The last one, and the one before it, from which a server that is behind goes on."""


class Checkpoints:
    """Of one task, in one folder."""

    def __init__(self, folder: Path, dim: int) -> None:
        """Raises SetupError."""
        self.folder, self._dim = folder, dim
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left_over in folder.glob("*.tmp"):
                left_over.unlink()
        except OSError as error:
            raise SetupError(f"state_dir: expected a folder to write to, found {folder}: {error.strerror}") from None

    def path(self, round: int) -> Path:
        """Of one round's file."""
        return self.folder / f"round-{round:08}.npz"

    def save(self, round: int, model: NDArray[np.float32], noisy_sum: RingArray) -> None:
        """On disk when it returns. model, noisy_sum: (d,). Raises StoreError; then nothing is there."""
        temporary = self.path(round).with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                np.savez(file, model=model, noisy_sum=noisy_sum)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path(round))
            _sync_folder(self.folder)
            self._forget_older_than(round)
        except OSError as error:
            with suppress(OSError):  # the next start deletes it
                temporary.unlink(missing_ok=True)
            raise StoreError(f"checkpoint of round {round}: nothing was recorded: {error.strerror}") from None

    def _forget_older_than(self, round: int) -> None:
        for path in sorted(self.folder.glob("round-*.npz"))[:-KEPT]:
            if path != self.path(round):
                path.unlink()

    def model(self, round: int) -> NDArray[np.float32]:
        """(d,). Raises SetupError when it is not there, or not whole."""
        return self._load(round, "model", np.float32)

    def noisy_sum(self, round: int) -> RingArray:
        """(d,). Raises SetupError."""
        return self._load(round, "noisy_sum", np.int64)

    def _load(self, round: int, name: str, kind: type[Scalar]) -> NDArray[Scalar]:
        path = self.path(round)
        try:
            with np.load(path, allow_pickle=False) as file:
                found: NDArray[Scalar] = file[name]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise SetupError(f"state_dir: expected the checkpoint of round {round}, found {path}: {error}") from None
        if found.dtype != kind or found.shape != (self._dim,):
            raise SetupError(
                f"state_dir: expected {self._dim} values of {kind.__name__} in {path}, found {found.shape}"
            )
        return found


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
