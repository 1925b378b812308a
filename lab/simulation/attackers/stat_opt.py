"""STAT-OPT: the honest mean, moved against its own signs as far as the server's rule lets it pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from precad.clients.attacks.attack import Attack, Knowledge, Vector, require_honest, within
from precad.clients.errors import ArgumentError
from precad.lab.simulation.rules.krum import Krum

Rule = Literal["bound", "krum"]
_HALVINGS: Final = 40


@dataclass(frozen=True, slots=True)
class StatOpt(Attack):
    """Every attacker uploads mu + gamma p, p = -sign(mu), mu the honest mean, with the largest gamma that passes:

    - bound: the norm bound C; where there is none, `reach` times the longest honest update.
    - krum: Krum picks the attackers' vector; by halving, from the widest distance between honest updates.

    It is tailored to the rule, and called STAT-OPT in Xie et al., CCS '23.
    Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", NDSS '21.
    """

    name: ClassVar[str] = "stat-opt"
    is_simulated_only: ClassVar[bool] = True

    rule: Rule = "bound"
    reach: float = 10.0

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ArgumentError(f"rule must be one of {', '.join(get_args(Rule))}, got {self.rule}")
        if not 0 < self.reach < math.inf:
            raise ArgumentError(f"reach must be positive and finite, got {self.reach}")

    def craft(self, known: Knowledge) -> Vector:
        """Return mu + gamma p."""
        require_honest(self.name, known)
        mean = known.honest.mean(axis=0)
        p = -np.sign(mean)
        gamma = _past_krum(known, mean, p) if self.rule == "krum" else self._to_bound(known, mean, p)
        return within(mean + gamma * p, known.bound)

    def _to_bound(self, known: Knowledge, mean: Vector, p: Vector) -> float:
        """Return the larger root of ||mu + gamma p|| = C, or 0."""
        bound = known.bound
        if math.isinf(bound):
            bound = self.reach * float(np.linalg.norm(known.honest, axis=1).max())
        squared_p, b, c = float(p @ p), float(mean @ p), float(mean @ mean) - bound**2
        if squared_p == 0:
            return 0.0
        return max(0.0, (-b + math.sqrt(max(0.0, b**2 - squared_p * c))) / squared_p)


def _past_krum(known: Knowledge, mean: Vector, p: Vector) -> float:
    """Return the largest gamma found for which Krum, made for so many attackers, picks theirs; 0 if it picks none."""
    krum, n = Krum(f=known.n_attackers), known.n_attackers
    gram = known.honest @ known.honest.T
    squares = np.diag(gram)
    passing, failing = 0.0, math.sqrt(max(0.0, float((squares[:, None] + squares[None, :] - 2 * gram).max())))
    for _ in range(_HALVINGS):
        gamma = (passing + failing) / 2
        crafted = mean + gamma * p
        picked = krum.aggregate(np.vstack([known.honest, np.tile(crafted, (n, 1))]))
        passing, failing = (gamma, failing) if np.array_equal(picked, crafted) else (passing, gamma)
    return passing
