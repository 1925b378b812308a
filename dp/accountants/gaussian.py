"""Return what a Gaussian release costs that a record is in for certain."""

from __future__ import annotations

import math


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return epsilon of one Gaussian release, raised by far more than the root finder's error.

    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML '18, Theorem 8.
    With a multiplier below 1e-6 epsilon is beyond 10^11, and is given as infinite.
    """
    from dp_accounting import get_epsilon_gaussian

    if noise_multiplier < 1e-6:
        return math.inf
    return float(get_epsilon_gaussian(noise_multiplier, delta)) * (1 + 1e-9) + 1e-9
