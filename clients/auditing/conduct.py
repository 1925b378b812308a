"""Follow the protocol with canaries for records, and write down what they added."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.canary_file import Canaries, CanaryFile, Contribution, header_of, path_of
from precad.clients.auditing.head import canary_records
from precad.clients.records.records import Records
from precad.clients.training.conduct import Conduct, Trained, Vector
from precad.mpc.prg import RandomBytes
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


@final
class Auditing(Conduct):
    """Follow the protocol with canaries for records: those whose coin says so."""

    __slots__ = ("_client", "_coordinates", "_file", "_head", "_invited", "_path", "_places", "_random", "_task")

    def __init__(self, client: str, task: Task, state_dir: Path, random_bytes: RandomBytes | None = None) -> None:
        """Touch no file yet: a configuration is checked so, too. random_bytes: of the coins; None: the system's."""
        self._client, self._task, self._random = client, task, random_bytes
        self._path = path_of(state_dir, client, task.digest())
        places, first = task.canaries_of[client], task.canary_coordinates.start
        self._places = np.arange(places.start, places.stop)
        self._coordinates = slice(first + places.start, first + places.stop)
        self._file: CanaryFile | None = None
        self._invited: tuple[int, bytes] = (0, b"")
        self._head: NDArray[np.float32] = np.zeros(0, dtype=np.float32)

    def on_records(self, records: Records) -> Records:
        """Return the canaries whose coin says so, of the records' shape. Raises StateFileError, ArgumentError."""
        secrets = Canaries(self._task.n_canaries, len(self._places))
        header = header_of(self._client, self._task.digest())
        source = {} if self._random is None else {"random_bytes": self._random}
        self._file = CanaryFile(self._path, header, secrets, **source)
        assert secrets.coins is not None  # the file has drawn them
        return canary_records(self._places[secrets.coins], records)

    def on_invitation(self, n_committed: int, model_digest: bytes) -> None:
        """Remember which model the update will be for."""
        self._invited = n_committed, model_digest

    def on_trained(self, trained: Trained) -> Vector:
        """Remember the model at the canaries' coordinates."""
        self._head = trained.parameters[self._task.canary_coordinates].copy()
        return trained.update

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Encode as the protocol says, and write down what the canaries added. Raises StateFileError too."""
        encoded = Conduct.encode(self, update, task)
        if self._file is not None:
            self._file.add(Contribution(*self._invited, self._head, encoded[self._coordinates].copy()))
        return encoded

    def close(self) -> None:
        """See `Conduct`."""
        if self._file is not None:
            self._file.close()
            self._file = None
