"""The step from an opened sum to the next model, which both servers, and a simulation of them, take alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precad.mpc import fixed_point, ring
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


def updated(parameters: NDArray[np.float32], noisy_sum: RingArray, task: Task) -> NDArray[np.float32]:
    """theta + eta / W * decode(noisy sum), with the public constant W = `Task.divisor`. Shapes (d,).

    Where the bound of updates is learnt, the sum is S / r times too small. The rule of `precad.protos.task.quantile`
    then moves the last number of the vector.
    Computed elementwise in float64 and rounded once to float32, so two machines get the same bits.
    Source: PRECAD, equation (2), with the divisor made independent of who took part.
    """
    result, rule = np.empty_like(parameters), task.quantile_rule
    factor = task.learning_rate / task.divisor
    if rule is not None:
        factor *= rule.bound(float(parameters[-1])) / rule.room
    for tile in ring.tiles(task.dim):
        step = fixed_point.decode(noisy_sum[tile], task.frac_bits) * factor
        result[tile] = parameters[tile].astype(np.float64) + step
    if rule is not None:
        count = float(fixed_point.decode(noisy_sum[-1:], task.frac_bits)[0])
        result[-1] = rule.next_log_ratio(float(parameters[-1]), count)
    return result


def has_diverged(parameters: NDArray[np.float32]) -> bool:
    """Return whether the squared norm is no finite float32.

    Parameters of that size are infinite, or their products overflow in the float32 that a network computes with.
    """
    squares = (np.square(parameters[tile], dtype=np.float64).sum() for tile in ring.tiles(len(parameters)))
    return not sum(squares) <= np.finfo(np.float32).max


def learnt_bound(parameters: NDArray[np.float32], task: Task) -> float | None:
    """S, to which updates of the coming round are clipped; None where no bound is learnt. parameters: (d,)."""
    return None if task.quantile_rule is None else task.quantile_rule.bound(float(parameters[-1]))
