"""Distances between the updates of a round, for whoever sees them in the clear: rules and attackers of a simulation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def squared_distances(updates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ||x_i - x_j||^2, (m, m), never negative."""
    gram = updates @ updates.T
    norms = np.diag(gram)
    found: NDArray[np.float64] = np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(found, 0.0)
    return found
