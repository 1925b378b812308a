"""Follow the protocol with records of the client's own, those that coins leave in, and write down every update."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.conduct import Audits
from precad.clients.auditing.real_file import RealContribution, RealSecrets, require_tellable
from precad.clients.errors import StateFileError
from precad.clients.records.records import Records, pixels
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


@final
class RealAuditing(Audits):
    """Train on those of its declared records whose coin says so."""

    __slots__ = ("_parameters",)

    def __init__(self, client: str, task: Task, state_dir: Path, random_bytes: RandomBytes = SYSTEM_BYTES) -> None:
        """See `Audits`."""
        super().__init__(client, task, state_dir, random_bytes)
        self._parameters: NDArray[np.float32] = np.zeros(0, dtype=np.float32)

    def on_records(self, records: Records) -> Records:
        """Return the records whose coin says so, of the first that the client declares.

        Raises:
        - ArgumentError for too few records, or such as no gradient can be computed of by itself.
        - StateFileError, also for other records than the coins are of.
        """
        held = self._task.clients[self._client]
        require_tellable(self._client, records, held)
        audited = Records(pixels(records.take(np.arange(held))), records.labels[:held].copy())
        secrets = RealSecrets(held, self._task.n_parameters, audited)
        coins = self.open(secrets, audited)
        if not _are_same(audited, secrets.records):
            self.close()
            raise StateFileError(f"client.state_dir: expected the records that the coins in {self._path} are of")
        return audited.take(np.flatnonzero(coins))

    def remember(self, parameters: NDArray[np.float32]) -> None:
        """Remember the model's parameters."""
        self._parameters = parameters[: self._task.n_parameters].copy()

    def contribution(self, encoded: RingArray) -> dict[str, Any]:
        """Return the update, and the model that it is for."""
        return RealContribution(*self._invited, self._parameters, encoded[: self._task.n_parameters]).fields()


def _are_same(records: Records, others: Records) -> bool:
    return np.array_equal(records.features, others.features) and np.array_equal(records.labels, others.labels)
