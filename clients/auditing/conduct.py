"""Follow the protocol with records that coins leave in, and write down what they added."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.canary_file import Canaries, CanaryFile, Contribution, Secrets, header_of, path_of
from precad.clients.auditing.head import canary_records
from precad.clients.auditing.kinks import audit_kinks
from precad.clients.models import networks
from precad.clients.records.records import Records
from precad.clients.training.conduct import Conduct, Trained, Vector
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

_SEED: Final = 0
"""Where searches for kinks begin: they protect nobody, and another model has other kinks."""


class Audits(Conduct):
    """Follow the protocol with the records whose coin says so, and write down every update."""

    __slots__ = ("_client", "_file", "_invited", "_n_updates", "_path", "_random", "_shape", "_task")

    def __init__(self, client: str, task: Task, state_dir: Path, random_bytes: RandomBytes = SYSTEM_BYTES) -> None:
        """Touch no file yet: a configuration is checked so, too. random_bytes: of the coins."""
        self._client, self._task, self._random = client, task, random_bytes
        self._path = path_of(state_dir, client, task.digest())
        self._file: CanaryFile | None = None
        self._invited: tuple[int, bytes] = (0, b"")
        self._n_updates = 0
        self._shape: tuple[int, ...] = ()

    def open(self, secrets: Secrets, records: Records) -> NDArray[np.bool_]:
        """Open the file, and return the coins. Raises StateFileError."""
        self._file = CanaryFile(self._path, header_of(self._client, self._task.digest()), secrets, self._random)
        assert secrets.coins is not None  # the file has drawn them
        self._shape = records.shape
        return secrets.coins

    def on_invitation(self, n_committed: int, model_digest: bytes) -> None:
        """Remember which model the update will be for."""
        self._invited = n_committed, model_digest

    def on_trained(self, trained: Trained) -> Vector:
        """Remember the model, and try records at its kinks before the first, second, fourth, eighth, .. update.

        They are tried in this process and by the engine that trains, as kernels differ by machine. Raises ClientError.
        """
        self.remember(trained.parameters)
        self._n_updates += 1
        if self._file is not None and self._n_updates & (self._n_updates - 1) == 0:
            theta, clip = trained.parameters[: self._task.n_parameters], self._task.record_clip
            model = networks.of_task(self._task)
            found = audit_kinks(model, theta, self._shape, clip, trained.clipped_sum, sets=1, seed=_SEED)
            self._file.add_kinks(found)
        return trained.update

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Encode as the protocol says, and write down what was added. Raises StateFileError too."""
        encoded = Conduct.encode(self, update, task)
        if self._file is not None:
            self._file.add(self.contribution(encoded))
        return encoded

    @abstractmethod
    def remember(self, parameters: NDArray[np.float32]) -> None:
        """Remember what the auditor needs of a model (d,)."""

    @abstractmethod
    def contribution(self, encoded: RingArray) -> dict[str, Any]:
        """Return the line of an encoded update (d,)."""

    def close(self) -> None:
        """See `Conduct`."""
        if self._file is not None:
            self._file.close()
            self._file = None


@final
class Auditing(Audits):
    """Follow the protocol with canaries for records: those whose coin says so."""

    __slots__ = ("_coordinates", "_head", "_places")

    def __init__(self, client: str, task: Task, state_dir: Path, random_bytes: RandomBytes = SYSTEM_BYTES) -> None:
        """See `Audits`."""
        super().__init__(client, task, state_dir, random_bytes)
        places, first = task.canaries_of[client], task.canary_coordinates.start
        self._places = np.arange(places.start, places.stop)
        self._coordinates = slice(first + places.start, first + places.stop)
        self._head: NDArray[np.float32] = np.zeros(0, dtype=np.float32)

    def on_records(self, records: Records) -> Records:
        """Return the canaries whose coin says so, of the records' shape. Raises StateFileError, ArgumentError."""
        coins = self.open(Canaries(self._task.n_canaries, len(self._places)), records)
        return canary_records(self._places[coins], records)

    def remember(self, parameters: NDArray[np.float32]) -> None:
        """Remember the model at the canaries' coordinates."""
        self._head = parameters[self._task.canary_coordinates].copy()

    def contribution(self, encoded: RingArray) -> dict[str, Any]:
        """Return what the canaries added."""
        return Contribution(*self._invited, self._head, encoded[self._coordinates].copy()).fields()
