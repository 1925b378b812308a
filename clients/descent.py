"""Several steps of gradient descent on one client's records, without clipping or noise: local training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clients.datasets import Records
from clients.local_update import sample_records
from clients.per_record import RecordEngine
from mpc.prg import RandomBytes


class LocalTraining(Protocol):
    """How a client trains: the fields of `protos.task.Task` and of a simulation's settings."""

    @property
    def local_batch(self) -> int | None: ...
    @property
    def local_momentum(self) -> float: ...
    @property
    def local_weight_decay(self) -> float: ...


def descend(
    parameters: NDArray[np.float32],
    records: Records,
    *,
    engine: RecordEngine,
    steps: int,
    rate: float,
    sample_rate: float,
    training: LocalTraining,
    random_bytes: RandomBytes,
) -> NDArray[np.float64]:
    """So many steps of stochastic gradient descent from theta_t (d,); the parameters after them, (d,).

    The gradient of a step is the mean over its batch, or the sum over a Poisson sample by the expected size p N_i.
    Momentum begins at zero, and weight decay is part of the gradient, as in PyTorch's SGD.
    Raises: ArgumentError, NonFiniteGradientError.
    """
    at = parameters.astype(np.float64)
    if len(records) == 0:  # all of them hoarded by an attacker
        return at
    velocity = np.zeros_like(at)
    batches = _batches(len(records), training.local_batch, sample_rate, random_bytes)
    for batch, size in itertools.islice(batches, steps):
        gradient = engine.gradient_sum(at, records.take(batch)) / size + training.local_weight_decay * at
        velocity = training.local_momentum * velocity + gradient
        at -= rate * velocity
    return at


def _batches(
    n: int, size: int | None, sample_rate: float, draw: RandomBytes
) -> Iterator[tuple[NDArray[np.int64], float]]:
    """Without end: the indices of a step's records, and what the sum of their gradients is divided by."""
    while size is None:
        yield sample_records(n, sample_rate, draw), sample_rate * n
    while True:
        order = np.argsort(np.frombuffer(draw(8 * n), dtype="<u8"), kind="stable")
        for start in range(0, n, size):
            batch = order[start : start + size]
            yield batch, float(len(batch))
