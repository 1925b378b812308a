"""Algorithm 2, line 8: from a clipped update to integers, f bits behind the point, rounded toward zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precad.mpc import fixed_point
from precad.mpc.errors import ParameterError
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


def encode_update(update: NDArray[np.float64], task: Task) -> RingArray:
    """Return the integers that a client shares of its update (d,). They are certain to be within the task's bounds.

    Raises: ArgumentError; MpcError.
    """
    threshold, cut = task.norm_check.threshold, task.convex_set
    encoded = fixed_point.encode_within(update, squared_norm_threshold=threshold, frac_bits=task.frac_bits)
    if cut is not None and not cut.holds(encoded):
        raise ParameterError("the vector is outside the task's set by more than rounding: project it before encoding")
    return encoded
