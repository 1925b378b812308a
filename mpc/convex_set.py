"""The public set that an update has to lie in: the ball of radius C, cut by balls of layers and by half-spaces.

A layer is a run of coordinates with a bound of its own, ||x_l||_2 <= C_l. A half-space is <x, g> >= t with a public
direction g of integers and t < 0. Each is one word more that the gate looks at, and no further bit is opened. An update
is accepted if and only if its norm and all constraints hold.

Thresholds are integers on the grid of 2^-f, computed with rationals, as those of the norm (`precad.mpc.norm_bound`).
Source: ours, docs/reference/protocol-convex-sets.md.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np

from precad.mpc import fixed_point
from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import WINDOW_BITS, NormBound
from precad.mpc.parameters import MAX_HALF_SPACES, MAX_LAYERS
from precad.mpc.ring import RingArray

MAX_COEFFICIENT: Final = 1 << 31
"""Largest magnitude in a direction: exact in float64, and in the products of `fixed_point.exact_dot`."""
_MOST_BITS: Final = 63
_FLOAT_ROOM_BITS: Final = 36
"""Rounding in float64 moves an honest <x, g> by less than 2^-36 C ||g||: sixteen sums of errors below 2^-46 C ||g||."""


@dataclass(frozen=True, slots=True)
class LayerBall:
    """A bound on the next `size` coordinates. Raises ParameterError unless both are positive, and C_l finite."""

    size: int
    clip: float

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ParameterError(f"size of a layer: expected at least 1, found {self.size}")
        if not 0 < self.clip < math.inf:
            raise ParameterError(f"bound of a layer: expected a finite number above 0, found {self.clip}")


@dataclass(frozen=True, eq=False)
class HalfSpace:
    """<x, g> >= t. Raises ParameterError unless g has a coordinate that is not zero, none beyond 2^31, and t <= 0."""

    direction: RingArray
    """g, integers, (d,)."""
    threshold: float
    """t."""

    def __post_init__(self) -> None:
        g = self.direction
        if max(int(g.max(initial=0)), -int(g.min(initial=0))) > MAX_COEFFICIENT:
            raise ParameterError("direction: expected coordinates of at most 2^31 in magnitude, found a larger one")
        if not g.any():
            raise ParameterError("direction: expected a coordinate that is not zero, found none")
        if not -math.inf < self.threshold <= 0:
            raise ParameterError(
                f"threshold of a half-space: expected a finite number of at most 0, found {self.threshold}"
            )

    @cached_property
    def squared_length(self) -> int:
        """Return ||g||_2^2."""
        return fixed_point.exact_dot(self.direction, self.direction)

    @cached_property
    def absolute_sum(self) -> int:
        """Return ||g||_1: how far rounding each coordinate toward zero moves <X, g>, at most."""
        return int(np.abs(self.direction).sum())


@dataclass(frozen=True)
class ConvexSet(NormBound):
    """The ball of radius C, cut by further constraints.

    Raises ParameterError as `NormBound`, and for layers or half-spaces that the check or an honest client cannot have:

    - layers are none or cover all d coordinates, each with C_l <= C and C_l 2^f at least 1
    - C 2^f ||g|| - 2^f t is below 2^63, so that no word of an accepted vector wraps
    - rounding leaves honest clients room: t is at most -`room_of` of its half-space, so that zero is in their set
    - <g_i, g_j> >= 0 for each pair, and beside layers each g is zero outside one of them. Then one projection after
      the other ends inside all sets (`precad.clients.training.convex_projection`)
    """

    layers: tuple[LayerBall, ...] = ()
    half_spaces: tuple[HalfSpace, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_layers()
        if len(self.half_spaces) > MAX_HALF_SPACES:
            raise ParameterError(f"half_spaces: expected at most {MAX_HALF_SPACES}, found {len(self.half_spaces)}")
        for number, half_space in enumerate(self.half_spaces):
            self._require_half_space(number, half_space)
        for (i, one), (j, other) in itertools.combinations(enumerate(self.half_spaces), 2):
            if fixed_point.exact_dot(one.direction, other.direction) < 0:
                raise ParameterError(
                    f"half_spaces {i} and {j}: expected directions at no obtuse angle, so that satisfying one does not "
                    "break the other, found an inner product below 0"
                )

    def _require_layers(self) -> None:
        if len(self.layers) > MAX_LAYERS:
            raise ParameterError(f"layers: expected at most {MAX_LAYERS}, found {len(self.layers)}")
        if self.layers and (covered := sum(self.layer_sizes)) != self.dim:
            raise ParameterError(f"layers: expected {self.dim} coordinates in all, found {covered}")
        for layer in self.layers:
            if layer.clip > self.clip_norm:
                raise ParameterError(f"bound of a layer: expected at most {self.clip_norm}, found {layer.clip}")
            if self._on_grid(layer.clip) < 1:
                raise ParameterError(
                    f"bound of a layer * 2^frac_bits: expected at least 1, found {layer.clip} * 2^{self.frac_bits}"
                )

    def _require_half_space(self, number: int, it: HalfSpace) -> None:
        if it.direction.shape != (self.dim,):
            raise ParameterError(
                f"half_spaces {number}: expected a direction of {self.dim} coordinates, found {it.direction.size}"
            )
        if (reach := self._reach_of(it) - self.threshold_of(it)) >= 1 << _MOST_BITS:
            raise ParameterError(
                f"half_spaces {number}: expected C ||g|| - t below 2^63 on the grid, found a number of "
                f"{reach.bit_length()} bits: scale the direction and the threshold down"
            )
        if self.honest_threshold_of(it) > 0:
            least = -math.ldexp(self.room_of(it), -self.frac_bits)
            raise ParameterError(
                f"half_spaces {number}: expected a threshold of at most {least:.6g}, for rounding, found {it.threshold}"
            )
        touched = np.flatnonzero(it.direction)[[0, -1]]
        first, last = np.searchsorted(np.cumsum(self.layer_sizes), touched, side="right")
        if self.layers and first != last:
            raise ParameterError(
                f"half_spaces {number}: expected a direction that is zero outside one layer, beside bounds of layers, "
                f"found one in layers {first} to {last}"
            )

    def _on_grid(self, value: float) -> Fraction:
        return Fraction(value) * (1 << self.frac_bits)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Return how many coordinates each layer has, in their order."""
        return tuple(layer.size for layer in self.layers)

    @cached_property
    def layer_thresholds(self) -> tuple[int, ...]:
        """Return floor((C_l 2^f)^2) of each layer: the largest accepted sum of its squares."""
        return tuple(math.floor(self._on_grid(layer.clip) ** 2) for layer in self.layers)

    def threshold_of(self, it: HalfSpace) -> int:
        """Return ceil(2^f t): the least accepted <X, g> of a half-space."""
        return math.ceil(self._on_grid(it.threshold))

    def _reach_of(self, it: HalfSpace) -> int:
        """floor(sqrt(T) ||g||): the largest |<X, g>| of a vector that is short enough."""
        return math.isqrt(self.threshold * it.squared_length)

    def room_of(self, it: HalfSpace) -> int:
        """Return how far an honest <X, g> stays above the threshold before it is rounded, in steps of 2^-f."""
        return it.absolute_sum + (self._reach_of(it) >> _FLOAT_ROOM_BITS) + 1

    def honest_threshold_of(self, it: HalfSpace) -> int:
        """Return the least 2^f <x, g> of an honest client before rounding; at most 0."""
        return self.threshold_of(it) + self.room_of(it)

    @cached_property
    def low_bits(self) -> tuple[int, ...]:
        """See `NormBound.low_bits`; behind those words one of each layer, then one of each half-space.

        A layer's T_l - N_l is below 2^bitlength(T) if it is not negative, and has bit 62 or 63 otherwise.
        """
        of_norms = (self.threshold.bit_length(),) * (1 + len(self.layers))
        reaches = (self._reach_of(it) - self.threshold_of(it) for it in self.half_spaces)
        return (*(WINDOW_BITS + 1,) * self.n_rows, *of_norms, *(reach.bit_length() for reach in reaches))

    def holds(self, x: RingArray) -> bool:
        """Return whether a vector on the grid, (d,), lies in the set, over the integers of centred representatives."""
        if fixed_point.exact_squared_norm(x) > self.threshold:
            return False
        parts = np.split(x, np.cumsum(self.layer_sizes)[:-1]) if self.layers else []
        norms = map(fixed_point.exact_squared_norm, parts)
        if any(norm > most for norm, most in zip(norms, self.layer_thresholds, strict=True)):
            return False
        return all(fixed_point.exact_dot(x, it.direction) >= self.threshold_of(it) for it in self.half_spaces)
