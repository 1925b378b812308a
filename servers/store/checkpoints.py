"""The models of the last committed rounds, each with the noisy sum that made it, in a few files that take turns.

A file is overwritten in its place and put on disk before the round counts as committed (`precad.servers.store.rounds`).
It is never overwritten while it holds one of the last two that do. A crash may leave a file with a part of each round,
which checksums tell, or of a round that was not committed after all. Nothing refers to such a file, and it is the next
to be overwritten. A file that somebody deleted is made again when its turn comes. The noisy sum is public to both
servers. It is kept for the one that crashed before it had it (`precad.servers.store.standing`).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.dp.ledgers.sealed_file import sync_folder
from precad.mpc.errors import raised_as
from precad.mpc.ring import RingArray
from precad.servers.errors import SetupError, StoreError
from precad.servers.private_files import touch_private

log = structlog.get_logger(__name__)

Scalar = TypeVar("Scalar", bound=np.generic)

KEPT: Final = 2
"""The last one, and the one before it, from which a server that is behind goes on."""
FILES: Final = KEPT + 1


class Checkpoints:
    """Checkpoints of one task, in one folder."""

    def __init__(self, folder: Path, dim: int, moments: tuple[int, int] = (0, 0)) -> None:
        """moments: their shape, where the servers' optimiser has any. Raises SetupError."""
        self._dim, self._moments = dim, moments
        self._paths = [folder / f"checkpoint-{number}.npz" for number in range(FILES)]
        with raised_as(SetupError, OSError, f"state_dir: expected a folder to write to, found {folder}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._paths:
                touch_private(path)
            sync_folder(folder)
        self._rounds = {round: path for path in self._paths if (round := _round_in(path)) is not None}

    def keep_only(self, committed: Collection[int]) -> None:
        """Whatever is here of other rounds makes room first. To be said once it is known which rounds are committed."""
        self._rounds = {round: path for round, path in self._rounds.items() if round in committed}

    def save(
        self, round: int, model: NDArray[np.float32], noisy_sum: RingArray, moments: NDArray[np.float32] | None = None
    ) -> None:
        """Save a round's checkpoint, on disk on return. model, noisy_sum: (d,). moments: as after the round.

        Raises StoreError; then the last two are as they were.
        """
        of_optimizer: dict[str, Any] = {} if moments is None or not moments.size else {"moments": moments}
        kept = sorted(self._rounds)[-KEPT:]
        path = next(path for path in self._paths if path not in {self._rounds[number] for number in kept})
        self._rounds = {number: self._rounds[number] for number in kept}
        try:
            if not path.exists():
                log.warning("checkpoint.deleted", path=str(path), made_again=True)
                touch_private(path)
                sync_folder(path.parent)
            with path.open("r+b") as file:  # a file that keeps its blocks is on disk in less than half of the time
                np.savez(file, round=np.int64(round), model=model, noisy_sum=noisy_sum, **of_optimizer)
                if file.tell() != os.fstat(file.fileno()).st_size:
                    file.truncate()
                file.flush()
                os.fdatasync(file.fileno())
        except OSError as error:
            why = f"nothing was recorded in {path}: {error.strerror}"
            raise StoreError(f"checkpoint of round {round}: {why}") from None
        self._rounds[round] = path

    def model(self, round: int) -> NDArray[np.float32]:
        """Read the model (d,). Raises SetupError when it is not there, or not whole."""
        return self._load(round, "model", np.float32, (self._dim,))

    def noisy_sum(self, round: int) -> RingArray:
        """Read the noisy sum (d,). Raises SetupError."""
        return self._load(round, "noisy_sum", np.int64, (self._dim,))

    def moments(self, round: int) -> NDArray[np.float32]:
        """Read the optimiser's moments after the round, in their shape. Raises SetupError."""
        if not self._moments[0]:  # nor do checkpoints of a version without optimisers have any
            return np.zeros(self._moments, dtype=np.float32)
        return self._load(round, "moments", np.float32, self._moments)

    def _load(self, round: int, name: str, kind: type[Scalar], shape: tuple[int, ...]) -> NDArray[Scalar]:
        if (path := self._rounds.get(round)) is None:
            raise SetupError(
                f"state_dir: expected the checkpoint of round {round} in {self._paths[0].parent}, found none; "
                "without a copy of it this task is over, and a new one may begin from model.npy"
            )
        try:
            with np.load(path, allow_pickle=False) as file:
                found: NDArray[Scalar] = file[name]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise SetupError(f"state_dir: expected the checkpoint of round {round}, found {path}: {error}") from None
        if found.dtype != kind or found.shape != shape:
            wanted = " x ".join(map(str, shape))
            raise SetupError(f"state_dir: expected {wanted} values of {kind.__name__} in {path}, found {found.shape}")
        return found


def _round_in(path: Path) -> int | None:
    """Return the round of a checkpoint; None where there is none, or half of one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return int(file["round"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
