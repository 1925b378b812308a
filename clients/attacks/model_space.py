"""Updates as the model sees them, for attackers who craft one where the bound of updates is learnt, or a set smaller.

Where the task has a smaller set than the ball, they project what they craft onto it: outside it would be refused.
Where a bound is learnt, an upload is ( r / S u, a c ) of an update u within S (`precad.protos.task.quantile`). The last
number counts whether u was within S. An attacker crafts u, and counts itself as an honest client does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import within
from precad.clients.training.convex_projection import Vector, project_onto
from precad.mpc.convex_set import ConvexSet
from precad.protos.task.quantile import QuantileRule
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True)
class ModelSpace:
    """A round's uploads and updates, one from the other. They are the same where no bound is learnt."""

    n_parameters: int
    bound: float
    """S; what the task enforces where no bound is learnt, infinity where nothing is enforced."""
    rule: QuantileRule | None = None
    cut: ConvexSet | None = None
    """The smaller set, where the task has one."""

    @classmethod
    def of(cls, task: Task, parameters: NDArray[np.float32], enforced: float) -> Self:
        """Return that of a round from theta_t (d,). enforced: C, or infinity. Raises ValueError where lambda is out of
        range."""
        rule = task.quantile_rule
        if rule is None:
            return cls(task.n_parameters, enforced, cut=task.convex_set)
        return cls(task.n_parameters, rule.bound(float(parameters[-1])), rule)

    def updates(self, uploads: Vector) -> Vector:
        """Return the updates (.., n) of uploads (.., d), without what counts them."""
        return uploads if self.rule is None else uploads[..., : self.n_parameters] * (self.bound / self.rule.room)

    def project(self, update: Vector) -> Vector:
        """Return a point near the update (n,) that is accepted. Raises ArgumentError unless its norm is finite."""
        return within(update, self.bound) if self.cut is None else project_onto(update, self.cut)

    def upload(self, update: Vector) -> Vector:
        """Return what is uploaded of an update (n,), (d,). It is within C if the update is within S."""
        if not np.isfinite(update).all():
            return update
        if self.rule is None:
            return update if self.cut is None else self.project(update)
        is_within = math.sqrt(float(np.sum(np.square(update)))) <= self.bound
        return np.append(update * (self.rule.room / self.bound), self.rule.unit if is_within else -self.rule.unit)
