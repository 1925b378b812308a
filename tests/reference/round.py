"""The whole PRECAD round in the clear. Read this first: the secure round computes the same integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, isqrt
from operator import mul

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ReferenceRound:
    """Hold what both servers hold after the round."""

    accepted: list[str]
    rejected: list[str]
    noisy_sum: list[int]
    """In steps of 2^-f."""
    parameters: NDArray[np.float32]


def run_round(
    parameters: NDArray[np.float32],
    updates: Mapping[str, Sequence[float]],
    forgeries: Mapping[str, Sequence[int]],
    noises: tuple[Sequence[int], Sequence[int]],
    *,
    clip_norm: float,
    frac_bits: int,
    learning_rate: float,
    divisor: float,
    layers: Sequence[tuple[int, float]] = (),
    half_spaces: Sequence[tuple[Sequence[int], float]] = (),
) -> ReferenceRound:
    """Return theta + eta / W * (sum of the updates with norm <= C, plus both servers' noise), exactly.

    - `updates`: of the honest clients, as real vectors.
    - `forgeries`: what malicious clients upload, as 64-bit integers.
    - `noises`: of server A and of server B, on the integer grid.
    - `layers`: size and bound of each, and `half_spaces`: g and t of each, of which only acceptance depends here. In a
      task with these, honest clients project otherwise: their vectors come as integers.

    C = clip_norm, f = frac_bits, W = divisor. Shapes: every vector is (d,).

    Source: PRECAD, Algorithm 2, lines 7-8 at the clients, and Algorithm 1, lines 4-6, at the servers. The public
    constant W is in place of the number of records in the round.
    """
    encoded_clip = Fraction(clip_norm) * 2**frac_bits
    vectors = {client: [int(word) for word in words] for client, words in forgeries.items()}
    for client, update in updates.items():  # project onto the ball of radius C, encode toward zero
        x = [Fraction(value) * 2**frac_bits for value in map(float, update)]
        squared_norm = sum(value**2 for value in x)
        squared_shrink = min(Fraction(1), encoded_clip**2 / squared_norm) if squared_norm else Fraction(1)
        magnitudes = [isqrt(floor(value**2 * squared_shrink)) for value in x]  # floor(|x| * min(1, C / norm))
        vectors[client] = [-m if value < 0 else m for m, value in zip(magnitudes, x, strict=True)]

    # every client's norm is checked exactly: nothing wraps, nothing is rounded
    fits = {client: sum(word**2 for word in vector) <= floor(encoded_clip**2) for client, vector in vectors.items()}
    for client, vector in vectors.items():  # and so is every further bound of the task
        rest = iter(vector)
        parts = [([next(rest) for _ in range(size)], Fraction(bound) * 2**frac_bits) for size, bound in layers]
        sides = [(sum(map(mul, vector, g)), Fraction(t) * 2**frac_bits) for g, t in half_spaces]
        fits[client] &= all(sum(word**2 for word in part) <= bound**2 for part, bound in parts)
        fits[client] &= all(product >= least for product, least in sides)
    accepted = sorted(client for client in vectors if fits[client])
    rejected = sorted(client for client in vectors if not fits[client])

    # the accepted updates and both servers' noise are summed
    terms = [*(vectors[client] for client in accepted), *noises]
    noisy_sum = [sum(int(word) for word in column) for column in zip(*terms, strict=True)]

    # theta moves by eta / W * sum: in float64, rounded once to float32
    steps = [total / 2**frac_bits * (learning_rate / divisor) for total in noisy_sum]
    moved = [float(theta) + step for theta, step in zip(parameters, steps, strict=True)]
    return ReferenceRound(accepted, rejected, noisy_sum, np.array(moved, dtype=np.float64).astype(np.float32))
