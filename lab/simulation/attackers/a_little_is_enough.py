"""A Little Is Enough: stay inside the honest updates' spread, and shift their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from precad.clients.attacks.attack import Attack, Knowledge, Vector, require_honest, within
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class ALittleIsEnough(Attack):
    """Every attacker uploads mu - z sd, coordinate by coordinate, over the honest updates.

    z is the largest with which enough honest clients lie farther from mu than the attackers. For m attackers of n
    clients, Phi(z) = (n - m - s) / (n - m) with s = floor(n / 2 + 1) - m. In the source the attackers estimate mu and
    sd from their own records; here they know them.
    Source: Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS
    '19, Algorithm 3.
    """

    name: ClassVar[str] = "alie"
    is_simulated_only: ClassVar[bool] = True

    z: float | None = None
    """In place of the formula."""

    def __post_init__(self) -> None:
        if self.z is not None and not 0 <= self.z < math.inf:
            raise ArgumentError(f"z must be >= 0 and finite, got {self.z}")

    def craft(self, known: Knowledge) -> Vector:
        """Return mu - z sd."""
        require_honest(self.name, known)
        z = self.z
        if z is None:
            z = largest_z(len(known.honest) + known.n_attackers, known.n_attackers)
        shifted: Vector = known.honest.mean(axis=0) - z * np.std(known.honest, axis=0)
        return within(shifted, known.bound)


def largest_z(n: int, m: int) -> float:
    """Return z_max for n clients, m of them attackers: 0 where no honest supporter is needed or none can be had."""
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m)
    return max(0.0, float(ndtri(share))) if 0 < share < 1 else 0.0
