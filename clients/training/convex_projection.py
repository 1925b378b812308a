"""The projection onto a task's convex set: balls of layers within the ball of radius C, then half-spaces.

Two non-expansive maps, one after the other:

1. The point nearest to v among those with ||x_l|| <= C_l for each layer and ||x|| <= C.
2. One projection onto each half-space, in their order. It moves along its own direction alone. At no obtuse angle to
   the others, that cannot break them. Half-spaces contain zero, so no norm grows: of the whole, or of the one layer in
   which the direction lies.

So the result is inside all sets after one pass, whatever v is, and nothing is scaled or stopped at the end. Adding or
removing a record moves it by no more than the record moves v, up to rounding (`project_onto`).
Source: ours, docs/reference/protocol-convex-sets.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError
from precad.clients.training.projection import norm_of
from precad.mpc.convex_set import ConvexSet, HalfSpace

Vector = NDArray[np.float64]

_SLACK: Final = Fraction(1, 1 << 44)
"""Part of each bound that the projection leaves, above the rounding errors of norms, factors and products."""


def project_onto(vector: Vector, within: ConvexSet) -> Vector:
    """Return a point of the set near v (d,), on both sides of rounding toward zero to the set's grid.

    Balls hold over the reals. Half-spaces are kept `ConvexSet.room_of` away, so rounding each coordinate toward zero
    leaves the integers inside. The computed map moves two vectors apart by 2^-44 C and 2^-45 C per half-space at most.
    Raises: ArgumentError unless the norm of v is finite.
    """
    projected = _onto_balls(vector, within)
    for it in within.half_spaces:
        projected = _onto_half_space(projected, it, math.ldexp(within.honest_threshold_of(it), -within.frac_bits))
    return projected


def _onto_balls(vector: Vector, within: ConvexSet) -> Vector:
    """Scale each layer by its factor. Without layers the whole is the only one."""
    sizes = within.layer_sizes or (within.dim,)
    clips = [layer.clip for layer in within.layers] or [within.clip_norm]
    layers = np.split(vector, np.cumsum(sizes)[:-1])
    factors = ball_factors([norm_of(layer) for layer in layers], clips, within.clip_norm)
    return np.concatenate([layer * factor for layer, factor in zip(layers, factors, strict=True)])


def ball_factors(norms: Sequence[float], clips: Sequence[float], clip_norm: float) -> list[float]:
    """Return what each layer is multiplied with, at most 1, in the point nearest to layers of these norms.

    The nearest point has norms min(C_l, s n_l), with the largest s <= 1 whose squares add up to C^2 at most. Layers
    reach their bound in the order of C_l / n_l as s grows. Between two of these values s follows from

        s^2 (sum of n_l^2 below their bound) = C^2 - (sum of C_l^2 at theirs).

    It is computed with rationals, as C and C_l may leave a small difference. Bounds are taken 2^-44 of them lower.

    Raises: ArgumentError unless every norm is finite.
    """
    if not all(norm < math.inf for norm in norms):  # this form refuses NaN too
        raise ArgumentError("vector to project: expected layers of finite norm, found NaN or infinity")
    lower = (1 - _SLACK) ** 2
    squares = [Fraction(norm) ** 2 for norm in norms]
    bounds = [lower * Fraction(clip) ** 2 for clip in clips]
    shrink = _common_shrink(squares, bounds, lower * Fraction(clip_norm) ** 2)
    scaled = [
        shrink if square * shrink <= most else most / square for square, most in zip(squares, bounds, strict=True)
    ]
    return [_root(square) for square in scaled]


def _common_shrink(squares: Sequence[Fraction], bounds: Sequence[Fraction], whole: Fraction) -> Fraction:
    """Return s^2 <= 1, exactly: the largest with sum of min(bound, s^2 square) <= whole."""
    free, left = sum(squares, Fraction(0)), whole
    for square, most in sorted(zip(squares, bounds, strict=True), key=lambda layer: _reached_at(*layer)):
        if free <= left or square * left <= most * free:
            break  # at s^2 = left / free, or 1, this layer and all behind it are within their bounds
        free, left = free - square, left - most
    return min(Fraction(1), left / free) if free else Fraction(1)


def _reached_at(square: Fraction, most: Fraction) -> tuple[bool, Fraction]:
    """Sort layers by the s^2 at which they reach their bound; zeros, which never do, come last."""
    return (not square, most / square if square else Fraction(0))


def _root(square: Fraction) -> float:
    """Return the square root, correct to 2^-52 of it however small the square is."""
    halvings = max(0, (square.denominator.bit_length() - square.numerator.bit_length()) // 2)
    return math.ldexp(math.sqrt(square * (1 << 2 * halvings)), -halvings)


def _onto_half_space(vector: Vector, it: HalfSpace, threshold: float) -> Vector:
    """Return the nearest x with <x, g> >= threshold. The sum is NumPy's, in pairs: BLAS may add in any order."""
    direction = it.direction.astype(np.float64)
    short = threshold - float(np.sum(vector * direction))
    return vector + (short / float(it.squared_length)) * direction if short > 0 else vector
