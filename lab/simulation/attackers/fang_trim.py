"""Fang et al.'s attack on trimmed means: beyond everybody, on the wrong side, in every coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.attack import Attack, Knowledge, Vector, require_honest, within
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class FangTrim(Attack):
    """Upload, in coordinate j, a uniform draw beyond the honest updates, against the sign of the honest mean.

    The draw is between the honest updates' extreme e_j on that side and the point beyond it. That point is factor * e_j
    or e_j / factor, whichever is farther out. Every attacker draws its own, so that they hide one another from
    trimming. The source attacks models, here it is updates.
    Source: Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX
    Security '20, trimmed mean, full knowledge, b = 2.
    """

    name: ClassVar[str] = "fang-trim"
    is_simulated_only: ClassVar[bool] = True

    factor: float = 2.0
    """The source's b."""

    def __post_init__(self) -> None:
        if not 1 < self.factor < math.inf:
            raise ArgumentError(f"factor must be above 1 and finite, got {self.factor}")

    def craft(self, known: Knowledge) -> Vector:
        """Return a draw of its own."""
        require_honest(self.name, known)
        goes_up = known.honest.mean(axis=0) > 0
        extreme = np.where(goes_up, known.honest.min(axis=0), known.honest.max(axis=0))
        is_outward = np.where(goes_up, extreme <= 0, extreme >= 0)  # from zero, so that a factor goes farther
        beyond = np.where(is_outward, extreme * self.factor, extreme / self.factor)
        share = known.random.uniform(size=extreme.shape)
        return within(extreme + share * (beyond - extreme), known.bound)
