"""Attackers that only a simulation has: tailored to rules of a server that sees every update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from precad.clients.attacks import ATTACKS
from precad.clients.attacks import StatOpt as StatOptOfBound
from precad.clients.attacks.attack import Attack, Knowledge, Vector
from precad.clients.errors import ArgumentError
from precad.clients.training.distances import squared_distances
from precad.lab.simulation.rules.krum import Krum

Rule = Literal["bound", "krum"]
_HALVINGS: Final = 40


@dataclass(frozen=True, slots=True)
class StatOpt(StatOptOfBound):
    """Choose gamma of `stat-opt` for another rule of the server, too.

    - bound: the attack of a deployment.
    - krum: Krum picks the attackers' vector; by halving, from the widest distance between honest updates.
    """

    rule: Rule = "bound"

    def __post_init__(self) -> None:
        StatOptOfBound.__post_init__(self)
        if self.rule not in get_args(Rule):
            raise ArgumentError(f"rule: expected one of {', '.join(get_args(Rule))}, found {self.rule}")

    def gamma(self, known: Knowledge, mean: Vector, p: Vector) -> float:
        """Return the largest gamma that passes the rule."""
        return StatOptOfBound.gamma(self, known, mean, p) if self.rule == "bound" else _past_krum(known, mean, p)


def _past_krum(known: Knowledge, mean: Vector, p: Vector) -> float:
    """Return the largest gamma found for which Krum, made for so many attackers, picks theirs; 0 if it picks none."""
    krum, n = Krum(f=known.n_attackers), known.n_attackers
    passing, failing = 0.0, math.sqrt(float(squared_distances(known.honest).max()))
    for _ in range(_HALVINGS):
        gamma = (passing + failing) / 2
        crafted = mean + gamma * p
        picked = krum.aggregate(np.vstack([known.honest, np.tile(crafted, (n, 1))]))
        passing, failing = (gamma, failing) if np.array_equal(picked, crafted) else (passing, gamma)
    return passing


ATTACKERS: Final[Mapping[str, type[Attack]]] = {**ATTACKS, StatOpt.name: StatOpt}
"""Every attack that a simulation knows by name: those of `precad.clients.attacks`, with what this module adds."""
