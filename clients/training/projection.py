"""The projection onto a ball: Algorithm 2, line 7, and whatever else must be no longer than a bound."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.checks import require_positive
from precad.clients.errors import ArgumentError

_ROUNDING_SLACK: Final = 2.0**-44
"""Relative room that `project` leaves below C; the rounding errors that it absorbs are below 2^-46. Two vectors may end
further apart than they were, by 2^-44 C at most. Half of that is the step from vectors left alone to
vectors shortened."""
_LEAST_SQUARE: Final = 1e-270
"""Least squared norm: d < 2^40 squares lose 2^-1035 at most by being subnormal, which is nothing beside it."""


def project(vector: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """Return v * min(1, C / ||v||_2), with 0 -> 0: the point nearest to v (d,) in the ball of radius C = `bound`.

    The norm of the result is <= C over the reals, not only as computed. A norm close to C or beyond goes to
    C * (1 - 2^-44). All roundings on the way (squares, pairwise sum, root, product) together are smaller than 2^-46,
    for d < 2^40 and C >= 1e-200. A server that checks the norm exactly thus never rejects an honest client.
    Raises: ArgumentError unless C is positive and finite and the norm of v is finite.
    """
    return vector * shrinkage(vector, bound)


def shrinkage(vector: NDArray[np.float64], bound: float) -> float:
    """Return the factor of `project`, 1 within the ball. Raises: ArgumentError as there."""
    require_positive("bound", bound)
    norm = norm_of(vector)
    if not norm < math.inf:  # this form refuses NaN too
        raise ArgumentError(f"vector to project: expected a finite norm, found {norm}")
    return 1.0 if norm <= bound * (1 - _ROUNDING_SLACK / 2) else bound * (1 - _ROUNDING_SLACK) / norm


def project_layers(vector: NDArray[np.float64], bound: float, layer_sizes: Sequence[int]) -> NDArray[np.float64]:
    """Project each of the L layers of v (d,) onto the ball of radius C / sqrt(L).

    The whole is then in the ball of radius C = `bound`: L (C / sqrt(L))^2 = C^2. The slack of `project` covers the
    rounding of C / sqrt(L).

    layer_sizes: sizes of the layers, in the order of v; together d.
    Raises: ArgumentError as `project`, or for other sizes.
    Source: McMahan, Ramage, Talwar and Zhang, ICLR '18, Sec. 3 (per-layer clipping).
    """
    if sum(layer_sizes) != len(vector):
        raise ArgumentError(f"layer_sizes: expected {len(vector)} in all, found {sum(layer_sizes)}")
    layers = np.split(vector, np.cumsum(layer_sizes)[:-1])
    return np.concatenate([project(layer, bound / math.sqrt(len(layers))) for layer in layers])


def norm_of(vector: NDArray[np.float64]) -> float:
    """Return ||v||_2 in float64.

    Where squares overflow, or so many vanish that it could be seen, the largest entry is divided out first.
    """
    with np.errstate(over="ignore"):
        square = float(np.sum(np.square(vector)))
    if _LEAST_SQUARE < square < math.inf:
        return math.sqrt(square)
    largest = float(np.max(np.abs(vector), initial=0.0))
    if not 0 < largest < math.inf:  # zero, NaN and infinity are their own norm
        return largest
    return largest * math.sqrt(float(np.sum(np.square(vector / largest))))
