"""The step from an opened sum to the next model, which both servers, and a simulation of them, take alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from precad.mpc import fixed_point, ring
from precad.mpc.ring import RingArray
from precad.protos.task.server_step import power
from precad.protos.task.task import Task

Parameters = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Hold what the next step depends on beside the model. A step makes a new one, and changes none."""

    n_steps: int
    """Rounds that moved the model so far: committed ones."""
    moments: Parameters
    """(`Task.n_moments`, `Task.n_parameters`); first, then second moments."""

    @classmethod
    def first(cls, task: Task) -> Self:
        """Return that of a model that no round has moved."""
        return cls(0, np.zeros(moments_shape(task), dtype=np.float32))


def moments_shape(task: Task) -> tuple[int, int]:
    """Return the shape of an optimiser's moments."""
    return task.n_moments, task.n_parameters


def updated(
    parameters: Parameters, noisy_sum: RingArray, task: Task, past: Past, n_accepted: int = 0
) -> tuple[Parameters, Past]:
    """Return theta + eta_t / W * decode(noisy sum), with the public constant W = `Task.divisor`. Shapes (d,).

    n_accepted: updates that the round accepted, of which W depends where Krum's rule chooses (`Task.divisor_of`).

    eta_t is the rate after the rounds so far. With an optimiser, its direction takes the place of g = decode(noisy sum)
    / W (`precad.protos.task.server_step`). Where the bound of updates is learnt, the sum is S / r times too small. The
    rule of `precad.protos.task.quantile` then moves the last number of the vector. Canaries' coordinates move alike.
    Computed elementwise in float64 and rounded once to float32, so two machines get the same bits.
    Source: PRECAD, equation (2), with the divisor made independent of who took part.
    """
    result, rule = np.empty_like(parameters), task.quantile_rule
    scale = None if rule is None else rule.bound(float(parameters[-1])) / rule.room
    step = _Step(task, past, task.divisor_of(n_accepted), scale)
    for tile in (*ring.tiles(task.n_parameters), task.canary_coordinates):
        result[tile] = step.moved(parameters, fixed_point.decode(noisy_sum[tile], task.frac_bits), tile)
    if rule is not None:
        count = float(fixed_point.decode(noisy_sum[-1:], task.frac_bits)[0])
        result[-1] = rule.next_log_ratio(float(parameters[-1]), count)
    return result, step.past


def moved_along(
    parameters: Parameters, total: NDArray[np.float64], task: Task, past: Past, divisor: float
) -> tuple[Parameters, Past]:
    """Return `updated` of a sum in the reals, (d,), over another public divisor: for servers that see all updates."""
    step = _Step(task, past, divisor)
    return step.moved(parameters, total, slice(None)).astype(np.float32), step.past


class _Step:
    """One step, tile by tile: each line is one rounded operation, which no machine fuses with another."""

    def __init__(self, task: Task, past: Past, divisor: float, scale: float | None = None) -> None:
        self._task, self._before = task, past.moments
        self._rate = task.rate(task.learning_rate, past.n_steps)
        factor = (self._rate if task.server_optimizer == "sgd" else 1.0) / divisor
        self._factor = factor if scale is None else factor * scale
        self.past = Past(past.n_steps + 1, np.empty_like(past.moments))
        self._left = [1.0 - power(beta, self.past.n_steps) for beta in (task.server_momentum, task.server_beta2)]

    def moved(self, parameters: Parameters, total: NDArray[np.float64], tile: slice) -> NDArray[np.float64]:
        """Return a tile of the next model, from that tile of the sum. Writes the tile of the next moments."""
        theta = parameters[tile].astype(np.float64)
        step = total * self._factor
        if self._task.server_optimizer == "momentum":
            step = self._kept(0, tile, self._task.server_momentum, step) * self._rate
        elif self._task.server_optimizer == "adam":
            step = self._adams(step, tile)
        return theta + step

    def _adams(self, direction: NDArray[np.float64], tile: slice) -> NDArray[np.float64]:
        beta1, beta2 = self._task.server_momentum, self._task.server_beta2
        first = self._kept(0, tile, beta1, direction * (1.0 - beta1))
        second = self._kept(1, tile, beta2, direction * direction * (1.0 - beta2))
        scale = np.sqrt(second / self._left[1]) + self._task.server_adaptivity
        return first / self._left[0] / scale * self._rate

    def _kept(self, i: int, tile: slice, beta: float, added: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return beta m + added, as it is kept in float32."""
        kept = self.past.moments[i, tile]
        kept[:] = self._before[i, tile].astype(np.float64) * beta + added
        return kept.astype(np.float64)


def has_diverged(parameters: Parameters) -> bool:
    """Return whether the squared norm is no finite float32.

    Parameters of that size are infinite, or their products overflow in the float32 that a network computes with.
    """
    squares = (np.square(parameters[tile], dtype=np.float64).sum() for tile in ring.tiles(len(parameters)))
    return not sum(squares) <= np.finfo(np.float32).max


def learnt_bound(parameters: Parameters, task: Task) -> float | None:
    """S, to which updates of the coming round are clipped; None where no bound is learnt. parameters: (d,)."""
    return None if task.quantile_rule is None else task.quantile_rule.bound(float(parameters[-1]))
