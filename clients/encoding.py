"""Algorithm 2, line 8: from a clipped update to integers, f bits behind the point, rounded toward zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precad.mpc import fixed_point
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


def encode_update(update: NDArray[np.float64], task: Task) -> RingArray:
    """Return the integers that a client shares of its update (d,). Their norm is certain to be within the bound.

    Raises: ArgumentError; MpcError.
    """
    threshold = task.norm_bound.threshold
    return fixed_point.encode_within(update, squared_norm_threshold=threshold, frac_bits=task.frac_bits)
