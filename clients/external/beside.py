"""Clients of one process that train in different ways: honest ones by a foreign trainer, attackers by their attack.

An attack needs its client's records and gradients, which a foreign trainer hands to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.mpc.ring import RingArray


class Training(Protocol):
    """Make the uploads of some clients."""

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return a client's encoded update (d,), given the global model (d,)."""

    def close(self) -> None:
        """End what was started."""


class Beside:
    """Ask the training of each client."""

    def __init__(self, trainings: Mapping[str, Training]) -> None:
        """trainings: by client; several clients may have one."""
        self._trainings = trainings

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return a client's encoded update (d,). Raises what its training raises."""
        return self._trainings[client].train(client, parameters)

    def close(self) -> None:
        """End every training, once."""
        for training in {id(each): each for each in self._trainings.values()}.values():
            training.close()
