"""Min-Max: as far from the honest mean as no farther from anybody than honest updates are from one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack, Knowledge, Vector, require_honest, within
from precad.clients.errors import ArgumentError

Direction = Literal["std", "unit", "sign"]


@dataclass(frozen=True, slots=True)
class MinMax(Attack):
    """Every attacker uploads mu + gamma p with the largest gamma for which

        max_i ||mu + gamma p - x_i|| <= max_ij ||x_i - x_j||,   x the honest updates, mu their mean.

    p is -sd, -mu / ||mu|| or -sign(mu). Each i bounds gamma by a quadratic, which is solved where the source bisects.
    Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", NDSS '21, equation (8), AGR-agnostic.
    """

    name: ClassVar[str] = "min-max"
    is_simulated_only: ClassVar[bool] = True

    direction: Direction = "std"
    """p: the source's inverse standard deviation, unit vector or sign."""

    def __post_init__(self) -> None:
        if self.direction not in get_args(Direction):
            raise ArgumentError(f"direction must be one of {', '.join(get_args(Direction))}, got {self.direction}")

    def craft(self, known: Knowledge) -> Vector:
        """Return mu + gamma p; mu itself where the honest updates leave no room."""
        require_honest(self.name, known)
        mean = known.honest.mean(axis=0)
        p = self._perturbation(known.honest, mean)
        return within(mean + largest_gamma(known.honest, mean, p) * p, known.bound)

    def _perturbation(self, honest: NDArray[np.float64], mean: Vector) -> Vector:
        if self.direction == "std":
            spread: Vector = np.std(honest, axis=0)
            return -spread
        if self.direction == "sign":
            return -np.sign(mean)
        norm = float(np.linalg.norm(mean))
        return -mean / norm if norm > 0 else mean


def largest_gamma(honest: NDArray[np.float64], mean: Vector, p: Vector) -> float:
    """Return the largest gamma >= 0 with ||mean + gamma p - x_i||^2 <= max_ij ||x_i - x_j||^2 for all i; 0 if p = 0."""
    squared_p = float(p @ p)
    if squared_p == 0:
        return 0.0
    gram = honest @ honest.T
    norms = np.diag(gram)
    widest = max(0.0, float((norms[:, None] + norms[None, :] - 2 * gram).max()))
    away = mean - honest
    b, c = away @ p, (away**2).sum(axis=1) - widest  # gamma^2 p.p + 2 gamma b + c <= 0
    roots = (-b + np.sqrt(np.maximum(b**2 - squared_p * c, 0.0))) / squared_p
    return max(0.0, float(roots.min()))
