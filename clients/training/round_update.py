"""Compute a client's result of a round, by the task's algorithm, before its conduct and its encoding.

    precad            clip_C( -sum of clipped gradients )                                      PRECAD, Algorithm 2, 1-7
    user-dp-fedavg    clip_C( theta_i - theta ) after V steps of descent                       Xie et al., Algorithm 1
      or              each layer within C / sqrt(L); or within a learnt bound, and a count
      `precad.protos.task.quantile`
    ins-dp-fedavg     clip_C( theta_i - theta ) after V steps of DP-SGD                        Xie et al., Algorithm 3
    fedavg            clip_C( theta_i - theta ) after V steps of descent                       McMahan et al., 2017
      krum and multi-krum alike; tsgd-ptr too
    local-dp          clip_C( -sum of clipped gradients + N(0, (sigma R)^2) )                  PRECAD, Sec. 6.1, LDP
    distributed-dp    clip_(C - room)( -sum of clipped gradients ) + N(0, (sigma R)^2 / tau)   PRECAD, Sec. 1, DDP
    non-private       clip_C( -sum of gradients )

Every result has norm <= C, but for a chance of 2^-64 in `distributed-dp` (`Task.update_bound`). The servers' check
accepts it, but for a chance of 2^`NormBound.log2_honest_failure`, and says nothing about its records. Noise is added on
the grid of 2^-f, exactly. Clipping after the noise, encoding and adding up are post-processing. What is proved about
the results is in `precad.dp.task_privacy`. A simulation calls the same function
(`precad.lab.simulation.algorithms.deployment`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, NonFiniteGradientError, NonFiniteModelError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import Clipping, RecordClip
from precad.clients.records import Records
from precad.clients.training.convex_projection import Vector, project_onto
from precad.clients.training.descent import descend, stepped
from precad.clients.training.local_update import local_updates
from precad.clients.training.projection import project, project_layers
from precad.dp.noise import rounded_gaussian
from precad.mpc import fixed_point
from precad.mpc.errors import ParameterError
from precad.mpc.prg import RandomBytes, expanded_bytes
from precad.mpc.ring import RingArray
from precad.protos.task.quantile import QuantileRule
from precad.protos.task.task import Task


class StepNoise(Protocol):
    """(local step, standard deviation in units of 2^-f, d) to one client's noise on the integer grid, (d,)."""

    def __call__(self, step: int, std_on_grid: float, dim: int, /) -> RingArray: ...


def secure_noise(step: int, std_on_grid: float, dim: int) -> RingArray:
    """Draw under a fresh key of the operating system, whatever the step."""
    return rounded_gaussian.sample(std_on_grid, dim, expanded_bytes())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Participant:
    """A client of the round. Fixed streams in tests and simulations."""

    records: Records
    n_declared: int
    """N_i of the task, a public constant, whatever there is in `records`."""
    random_bytes: RandomBytes
    """Draws its records."""
    record_rate: float
    """p_i of the task."""
    noise: StepNoise = secure_noise
    adds_noise: bool = True
    """A malicious one adds none of its own."""


def round_updates(
    task: Task, parameters: NDArray[np.float32], participants: Sequence[Participant], engine: RecordEngine
) -> list[Vector]:
    """Return delta theta of several clients that hold the same model (d,), in units of the aggregate before encoding.

    Whether it raises depends on no record, but for `non-private` and a user's model that raises on some: who stays away
    tells why.
    Raises: ClientError (ArgumentError, NonFiniteModelError, NonFiniteGradientError); then nothing may be uploaded.
    """
    rules = task.rules
    if rules.trains_locally:
        train = _trained_privately if rules.clients_add_noise else _trained
        return [train(task, parameters, who, engine) for who in participants]
    clip = record_clip(task) if rules.protects_records else RecordClip(math.inf)
    bound = math.inf if rules.clips_own_noise else task.update_bound
    exact = _gradient_sums(task, parameters, participants, engine, clip, bound)
    if not rules.clients_add_noise:
        return exact
    noisy = [_noised(task, who, 0, update) for who, update in zip(participants, exact, strict=True)]
    return [projected(task, update) for update in noisy] if rules.clips_own_noise else noisy


def projected(task: Task, vector: Vector) -> Vector:
    """Return the vector's projection (d,) onto what the task allows: the ball of radius C, or a smaller convex set.

    Raises: ArgumentError unless its norm is finite.
    """
    cut = task.convex_set
    return project(vector, task.client_clip) if cut is None else project_onto(vector, cut)


def require_runnable(task: Task, engine: RecordEngine) -> None:
    """Require before the first round that this model can be clipped as the task says. Raises ArgumentError."""
    require_set(task)
    if task.clips_layers:
        engine.require_layer_sizes("task.update_clipping")


def require_set(task: Task) -> None:
    """Require before the first round that the set of updates is known here, with its directions.

    Raises ArgumentError.
    """
    try:
        _ = task.convex_set
    except ParameterError as error:
        raise ArgumentError(f"task.{error}") from None


def record_clip(task: Task) -> RecordClip:
    """Return R, as the task says."""
    return RecordClip(task.record_clip, Clipping(task.record_clipping))


def _gradient_sums(
    task: Task,
    parameters: NDArray[np.float32],
    participants: Sequence[Participant],
    engine: RecordEngine,
    clip: RecordClip,
    bound: float,
) -> list[Vector]:
    """Sum in one pass over the records of all. A set within the ball has a projection of its own."""
    streams = iter([who.random_bytes for who in participants])

    def draw(n: int) -> bytes:
        return next(streams)(n)

    updates = local_updates(
        parameters[: engine.dim],
        [who.records for who in participants],
        engine=engine,
        sample_rate=[who.record_rate for who in participants],
        record_clip=clip,
        client_clip_norm=bound if task.convex_set is None else math.inf,
        random_bytes=draw,
    )
    if task.convex_set is not None and bound < math.inf:
        return [projected(task, update) for update in updates]
    beyond = task.dim - engine.dim  # canaries' coordinates, where no other record has a gradient
    return [np.pad(update, (0, beyond)) for update in updates] if beyond else list(updates)


def _trained(task: Task, parameters: NDArray[np.float32], who: Participant, engine: RecordEngine) -> Vector:
    """Return theta_i - theta after V steps of descent, within C."""
    if not np.isfinite(parameters).all():
        raise NonFiniteModelError
    found = _difference(task, parameters[: task.n_parameters], who, engine)
    layer_sizes = engine.require_layer_sizes("task.update_clipping") if task.clips_layers else ()
    return bounded(task, float(parameters[-1]), found, layer_sizes)


def bounded(task: Task, last: float, found: Vector | None, layer_sizes: Sequence[int]) -> Vector:
    """Return what a client uploads of theta_i - theta, within C whoever trained, in the algorithm `user-dp-fedavg`.

    last: the last number of the round's vector. It is lambda where a bound is learnt.
    found: None where training led to no finite numbers. Then zeros are uploaded: staying away would say so.
    layer_sizes: where clipping is per layer.
    Raises: ArgumentError, which depends on no record.
    """
    update = np.zeros(task.n_parameters) if found is None else found
    if task.quantile_rule is not None:
        return _counted(task.quantile_rule, update, last, is_finite=found is not None, layer_sizes=layer_sizes)
    return project_layers(update, task.client_clip, layer_sizes) if task.clips_layers else projected(task, update)


def difference(trained: Vector, parameters: NDArray[np.float32]) -> Vector | None:
    """Return theta_i - theta, (n,); None unless its norm is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        update = trained - parameters.astype(np.float64)
        return update if np.linalg.norm(update) < math.inf else None


def _difference(task: Task, parameters: NDArray[np.float32], who: Participant, engine: RecordEngine) -> Vector | None:
    """theta_i - theta; None where descent leads to numbers that are not finite. An error would not do: staying away
    says what no upload may."""
    try:
        trained = descend(
            parameters,
            who.records,
            engine=engine,
            steps=task.local_steps,
            rate=task.local_rate,
            sample_rate=who.record_rate,
            training=task,
            random_bytes=who.random_bytes,
        )
    except NonFiniteGradientError:
        return None
    return difference(trained, parameters)


def _counted(
    rule: QuantileRule, update: Vector, log_ratio: float, *, is_finite: bool, layer_sizes: Sequence[int] = ()
) -> Vector:
    """( r / S clip_S(u), a c ), of norm at most C; `precad.protos.task.quantile`. What was not finite counts as too
    long.

    log_ratio: lambda. layer_sizes: where each layer is clipped to S / sqrt(L), and all must be within that.
    Raises ArgumentError where lambda is out of range, which depends on no record.
    """
    try:
        bound = rule.bound(log_ratio)
    except ValueError as error:
        raise ArgumentError(f"model: {error}") from None
    layers = np.split(update, np.cumsum(layer_sizes)[:-1]) if layer_sizes else [update]
    each = bound / math.sqrt(len(layers))
    is_within = is_finite and all(bool(np.linalg.norm(layer) <= each) for layer in layers)
    clipped = project_layers(update, bound, layer_sizes) if layer_sizes else project(update, bound)
    scaled = project(clipped * (rule.room / bound), rule.room)
    return np.append(scaled, rule.unit if is_within else -rule.unit)


def _trained_privately(task: Task, parameters: NDArray[np.float32], who: Participant, engine: RecordEngine) -> Vector:
    """clip_C( theta_i - theta ) after V steps theta_i <- theta_i - rate / (p_i N_i) (clipped sum + N(0, (sigma R)^2)).

    N_i is the declared number of records. Every round begins from rest (`stepped`).
    """
    at = parameters.astype(np.float64)
    velocity, size = np.zeros_like(at), who.record_rate * who.n_declared
    for step in range(task.local_steps):
        (update,) = local_updates(
            at,
            [who.records],
            engine=engine,
            sample_rate=who.record_rate,
            record_clip=record_clip(task),
            client_clip_norm=math.inf,
            random_bytes=who.random_bytes,
        )
        noisy = _noised(task, who, step, update)
        at, velocity = stepped(task, at, velocity, noisy, rate=task.local_rate, size=size)
    return projected(task, at - parameters.astype(np.float64))


def _noised(task: Task, who: Participant, step: int, update: Vector) -> Vector:
    """Return the update on the grid with the client's own noise, decoded again (d,)."""
    encoded = fixed_point.encode(update, task.frac_bits)
    if who.adds_noise:
        encoded = encoded + who.noise(step, task.client_noise_std_on_grid, task.dim)
    return fixed_point.decode(encoded, task.frac_bits)
