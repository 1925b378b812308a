"""Audit with real records: one more audit client trains on records of the data set, through the task's own model.

Canaries have gradients of one parameter each. A real record's gradient is of all of them, and changes from round to
round. The auditor computes each by itself, in float64, by automatic differentiation of one record at a time. The
client's update must be a sum of them, each at most R long: its weights are solved for.

Everybody else colludes with the auditor, and its own client's draws are known to it, too. So the noise is what is left
of the opened sum once all uploads are taken out. It is seen along the directions that these records can move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from precad.clients.attacks.canaries import RealRecords
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models.networks import trained
from precad.clients.records.records import Records, model_inputs
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.auditing import per_round
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.shares import Shares
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.seats import Seat
from precad.protos.task.task import Task

Vector = NDArray[np.float64]

CLIENT: Final = "audit-real"
MOST: Final = 32
"""Records, at most: enough to judge the clip, and few enough to solve for."""
SLACK: Final = 1e-3
"""Room for float32, whose rounding the solution for single records may enlarge: in units of R."""
_FLOAT32: Final = 2.0**-18
"""Step of a grid that rounds more coarsely than a gradient in float32, in units of R: sixteen of its last units."""
_LEAST: Final = 0.01
"""Least length over R of a gradient whose presence can be told."""
_TELLABLE: Final = 4.0
"""Likewise over what rounding moves its weight by."""
_NEGLIGIBLE: Final = float(np.finfo(np.float64).eps)
"""Singular values below it, of the largest and per row or column, are taken for zero, as NumPy does by itself."""
_REACH: Final = 6.5
"""Half steps, times its factors' length, that a sum of independent rounding errors exceeds once in 10^9 (Hoeffding)."""


@dataclass(slots=True, eq=False)
class RealAudit:
    """Hold what the rounds so far showed of an audit client with real records."""

    conduct: RealRecords
    clip: float
    weights: list[Vector] = field(default_factory=list)
    """(k,) by round that the client was in: how far each record moved the update, in units of R."""
    tellable: list[NDArray[np.bool_]] = field(default_factory=list)
    """Likewise: of which records it can be told whether they were drawn."""
    residuals: dict[Seat, list[Vector]] = field(default_factory=lambda: {seat: [] for seat in Seat})
    """Likewise: the noise of a seat, along directions that span the records' gradients."""
    unexplained: float = 0.0
    """Largest part of an update, over R, that is no sum of its records' gradients; or the largest misfit of one."""
    excess: float = 0.0
    """Most that a record added, less what rounding may."""

    def add(self, engine: RecordEngine, parameters: NDArray[np.float32], noise: Mapping[Seat, Vector]) -> None:
        """Take in a round that accepted the client's last update. noise: (d,) by seat, in units of R."""
        gradients = single_gradients(engine.model_copy(), parameters, self.conduct.records)
        apart = taken_apart(gradients / self.clip, -self.conduct.updates[-1] / self.clip)
        self.unexplained = max(self.unexplained, apart.unexplained)
        self.excess = max(self.excess, float(apart.weights.max(initial=0.0)) - apart.error)
        self.weights.append(apart.weights)
        self.tellable.append(apart.tellable)
        for seat, vector in noise.items():
            self.residuals[seat].append(vector @ apart.basis)

    def report(self, task: Task, shares: Shares) -> dict[str, Any] | None:
        """Return what the seats showed, beside what is printed; None where the client was in no round."""
        if not self.weights:
            return None
        seats = [self._of_seat(seat, task, 1 - shares.real) for seat in Seat]
        alarms = []
        if self.unexplained > SLACK:
            alarms.append(no_sum(self.unexplained))
        return {"records": len(self.weights[0]), "rounds": len(self.weights), "alarms": alarms, "seats": seats}

    def _of_seat(self, seat: Seat, task: Task, confidence: float) -> dict[str, Any]:
        privacy, weights = task_privacy(task).of_training, np.array(self.weights)
        event, rounds = privacy.events[View(seat.view)], len(weights)
        assert isinstance(event, SampledGaussian)  # of the algorithm `precad`
        may_be = np.array(self.tellable)
        scores = weights + np.array(self.residuals[seat])
        seen = Observed(scores, weights, may_be, np.ones(weights.shape[1], dtype=np.bool_))
        found = per_round.limits(seen, event, confidence, len(Seat))
        alarms = per_round.alarms(replace(found, clip_at_most=self.excess), event, rounding=SLACK)
        most = replace(found, clip_at_least=of_the_longest(weights))
        printed = privacy.epsilon(seat.view, rounds, task.delta)
        figure = most.epsilon(rounds, task.delta, event.group_size)
        return {
            "seat": seat.value,
            "view": seat.view.value,
            "printed": printed,
            "per_round": figure,
            "exceeded": figure > printed,
            "alarms": alarms,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Hold an update that was taken apart into single records, in units of R."""

    directions: Vector
    """(k, d): each record's gradient over its length; 0 for one that has none."""
    basis: Vector
    """(d, k): orthonormal, spans the records' gradients."""
    expected: Vector
    """(k,): what a drawn record adds along its direction."""
    weights: Vector
    """(k,): what each drawn record added; 0 for one that was not."""
    tellable: NDArray[np.bool_]
    """(k,): of which records it can be told whether they were drawn."""
    unexplained: float
    """Part of the update that is no sum of its records' gradients, or the largest misfit of one, beyond rounding."""
    error: float
    """Most that rounding moves a weight."""


def taken_apart(gradients: Vector, added: Vector, step: float = 0.0) -> Apart:
    """Take an update apart. gradients: (k, d), unclipped. added: (d,), the update. All is in units of R.

    step: of the grid that the update was rounded to, or that of float32 where this one is coarser. Rounding errors are
    taken as independent of one another. Records that are nearly alike cannot be told apart beneath them.
    """
    step = max(step, _FLOAT32)
    lengths = np.linalg.norm(gradients, axis=1)
    directions = gradients / np.where(lengths > 0, lengths, 1.0)[:, None]
    # of long vectors one factorisation; what follows needs its small triangle alone, which has their singular values
    basis, triangle = np.linalg.qr(directions.T)
    weights = np.linalg.lstsq(triangle, added @ basis, rcond=_NEGLIGIBLE * max(directions.shape))[0]
    expected = np.minimum(1.0, lengths)
    rounding = step / 2 * math.sqrt(len(added))
    error = _REACH * step / 2 / _least_singular(triangle[:, lengths > 0])
    tellable = expected > max(_LEAST, _TELLABLE * error)
    drawn = (weights > expected / 2) & tellable
    misfit = np.abs(weights - np.where(drawn, expected, 0.0))[tellable].max(initial=0.0)
    rest = float(np.linalg.norm(added - directions.T @ weights))
    unexplained = max(rest - rounding, float(misfit) - error, 0.0)
    return Apart(directions, basis, expected, np.where(drawn, weights, 0.0), tellable, unexplained, error)


def _least_singular(directions: Vector) -> float:
    """Return by how much any combination of unit length is moved, at least; above 0."""
    singular = np.linalg.svd(directions, compute_uv=False)
    return max(float(singular.min(initial=1.0)), float(np.finfo(np.float64).tiny))


def no_sum(unexplained: float) -> str:
    """Return the alarm for updates of which so much is unexplained."""
    return (
        "gradients: expected an update that is a sum of its records' clipped gradients, found "
        f"{unexplained:.3g} R beside it"
    )


def has_failed(report: Mapping[str, Any] | None) -> bool:
    """Return whether real records contradict what is printed."""
    if report is None:
        return False
    return bool(report["alarms"]) or any(seat["alarms"] or seat["exceeded"] for seat in report["seats"])


def of_the_longest(weights: Vector) -> float:
    """Return the least weight, over the rounds that had it, of the record whose least weight is largest."""
    least = np.where(weights > 0, weights, np.inf).min(axis=0)
    return float(np.where(np.isfinite(least), least, 0.0).max())


def single_gradients(model: nn.Module, parameters: NDArray[np.float32], records: Records) -> Vector:
    """Return each record's gradient of the cross-entropy by itself, in float64; (k, d)."""
    precise = trained(model, parameters).double().eval().requires_grad_(True)
    found = []
    for i in range(len(records)):
        features = model_inputs(torch.from_numpy(records.features[i : i + 1]), torch.float64)
        loss = functional.cross_entropy(precise(features), torch.from_numpy(records.labels[i : i + 1]))
        gradients = torch.autograd.grad(loss, list(precise.parameters()))
        found.append(torch.cat([one.flatten() for one in gradients]).numpy())
    return np.array(found)
