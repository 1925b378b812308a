"""Algorithm 2, line 8: from a clipped update to integers, f bits behind the point, rounded toward zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.attacks import Attack
from mpc import fixed_point
from mpc.ring import RingArray
from protos.task import Task


def encode_update(update: NDArray[np.float64], attack: Attack, task: Task) -> RingArray:
    """The integers that a client shares of its update (d,): an honest one's norm is certain to be within the bound.

    Raises: ArgumentError; MpcError where what an attacker made does not fit the ring.
    """
    if attack.name == "none":
        threshold = task.norm_bound.threshold
        return fixed_point.encode_within(update, squared_norm_threshold=threshold, frac_bits=task.frac_bits)
    return attack.on_encoded(fixed_point.encode(update, task.frac_bits))
