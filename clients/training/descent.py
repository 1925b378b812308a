"""Several steps of gradient descent on a client's own records: local training.

`descend` is one client's; `descend_together` the same for many clients, a step of all at a time. Neither clips nor adds
noise. `stepped` is a step of DP-SGD, by what its caller has clipped and added noise to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import Models, OwnModels
from precad.clients.records import Records
from precad.clients.training.local_update import sample_records
from precad.mpc.prg import RandomBytes

Vector = NDArray[np.float64]


class LocalTraining(Protocol):
    """How a client trains: the fields of `precad.protos.task.task.Task` and of a simulation's settings."""

    @property
    def local_batch(self) -> int | None: ...
    @property
    def local_momentum(self) -> float: ...
    @property
    def local_weight_decay(self) -> float: ...


@dataclass(frozen=True, slots=True)
class PlainDescent:
    """Steps on Poisson samples, without momentum or weight decay."""

    local_batch: int | None = None
    local_momentum: float = 0.0
    local_weight_decay: float = 0.0


PLAIN_DESCENT: Final = PlainDescent()


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
    """Take so many steps of stochastic gradient descent from theta_t (d,). Returns the parameters after them, (d,).

    The gradient of a step is the mean over its batch, or the sum over a Poisson sample by the expected size p N_i.
    Momentum begins at zero, and weight decay is part of the gradient, as in PyTorch's SGD.
    Raises: ArgumentError, NonFiniteGradientError.
    """
    at = parameters.astype(np.float64)
    if len(records) == 0:  # all of them hoarded by an attacker
        return at
    velocity = np.zeros_like(at)
    for batch, size in itertools.islice(_batches(len(records), training.local_batch, sample_rate, random_bytes), steps):
        gradient = engine.gradient_sum(at, records.take(batch)) / size + training.local_weight_decay * at
        velocity = training.local_momentum * velocity + gradient
        at -= rate * velocity
    return at


def stepped(
    training: LocalTraining, at: Vector, velocity: Vector, noisy: Vector, *, rate: float, size: float
) -> tuple[Vector, Vector]:
    """Take a step of DP-SGD from `at`, and return the parameters and the velocity after it, (d,) each.

    noisy: minus the sum of clipped gradients, with noise. size: p_i N_i of the declared number of records, so the
    divisor depends on no record. Momentum and weight decay are given the noisy gradients, so they are post-processing.
    """
    decay = training.local_weight_decay * size * at
    velocity = training.local_momentum * velocity + noisy - decay
    return at + rate / size * velocity, velocity


def mean_gradient(parameters: Vector, records: Records, engine: RecordEngine) -> Vector:
    """Return the gradient of the mean loss over all records at these parameters, (d,); zero without records.

    Raises: NonFiniteGradientError.
    """
    return engine.gradient_sum(parameters, records) / max(1, len(records))


def descend_together(
    parameters: NDArray[np.float32],
    clients: Sequence[Records],
    *,
    models: OwnModels,
    steps: int,
    rate: float,
    sample_rates: Sequence[float],
    training: LocalTraining,
    random_bytes: Sequence[RandomBytes],
) -> Models:
    """Return what `descend` gives for each client, (n, d), up to the rounding of `models`. Each client has a generator.

    Raises: ArgumentError, NonFiniteGradientError; then nobody's parameters are known.
    """
    at = np.repeat(parameters.astype(np.float64)[None], len(clients), axis=0)
    velocity = np.zeros_like(at)
    batches = [
        _batches(len(own), training.local_batch, sample_rate, draw)
        for own, sample_rate, draw in zip(clients, sample_rates, random_bytes, strict=True)
    ]
    has_records = np.array([len(own) > 0 for own in clients])[:, None]
    for _ in range(steps):
        drawn = [next(own) if is_any else _NOTHING for own, is_any in zip(batches, has_records[:, 0], strict=True)]
        sampled = [own.take(batch) for own, (batch, _) in zip(clients, drawn, strict=True)]
        sizes = np.array([size for _, size in drawn])[:, None]
        gradients = models.gradient_sums(at, sampled) / sizes + training.local_weight_decay * at
        velocity = training.local_momentum * velocity + np.where(has_records, gradients, 0.0)
        at -= rate * velocity
    return at


_NOTHING: Final = (np.empty(0, dtype=np.int64), 1.0)
"""The batch of a client that has no records, all of them hoarded by an attacker: it stays where it is."""


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
