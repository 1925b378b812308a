"""Clients of one process that train in different ways: honest ones by a foreign trainer, attackers by their attack.

An attack needs its client's records and gradients, which a foreign trainer hands to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.mpc.ring import RingArray


class Evaluating(Protocol):
    """Answer evaluations for some clients."""

    def evaluate(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return a client's encoded answer (3,), given the model (d,)."""


class Training(Protocol):
    """Make the uploads of some clients."""

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return a client's encoded update (d,), given the global model (d,)."""

    def close(self) -> None:
        """End what was started."""


class Beside:
    """Ask the training of each client, and what answers its evaluations."""

    def __init__(self, trainings: Mapping[str, Training], evaluations: Mapping[str, Evaluating]) -> None:
        """Both by client; several clients may have one. evaluations: none in a task without."""
        self._trainings, self._evaluations = trainings, evaluations

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return a client's encoded update (d,). Raises what its training raises."""
        return self._trainings[client].train(client, parameters)

    def evaluate(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return a client's encoded answer (3,). Raises what its evaluation raises."""
        return self._evaluations[client].evaluate(client, parameters)

    def close(self) -> None:
        """End every training, once."""
        for training in {id(each): each for each in self._trainings.values()}.values():
            training.close()
