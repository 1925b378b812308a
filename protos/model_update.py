"""What an opened sum does to the model: the one step that both servers, and a simulation of them, take alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpc import fixed_point, ring
from mpc.ring import RingArray
from protos.task import Task


def updated(parameters: NDArray[np.float32], noisy_sum: RingArray, task: Task) -> NDArray[np.float32]:
    """theta + eta / W * decode(noisy sum), with the public constant W = `Task.divisor`. Shapes (d,).

    Computed elementwise in float64 and rounded once to float32, so two machines get the same bits.
    Source: PRECAD, equation (2), with the divisor made independent of who took part.
    """
    result = np.empty_like(parameters)
    for tile in ring.tiles(task.dim):
        step = fixed_point.decode(noisy_sum[tile], task.frac_bits) * (task.learning_rate / task.divisor)
        result[tile] = parameters[tile].astype(np.float64) + step
    return result
