"""Read the figures of an evaluation by clients from the sum that both servers opened."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from precad.dp.queries.estimates import Rounding
from precad.dp.queries.evaluations import EvaluationEncoding, Figures
from precad.mpc.fixed_point import decode
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.task import Task


def figures_of(task: Task, noisy_sum: Sequence[int]) -> Figures:
    """Return the figures that the opened sum of an evaluation gives, (3,) on the grid, with 95 % error bars.

    They hold for the held-out records of those clients whose answers were accepted, if these told the truth and both
    servers added their noise. Raises ValueError for a task without evaluations.
    """
    of_round = task.evaluation_round
    if of_round is None:
        raise ValueError(f"task.evaluation: expected {BY_CLIENTS!r}, found {task.evaluation!r}")
    encoding = EvaluationEncoding(loss_bound=task.evaluation_loss_bound, frac_bits=of_round.frac_bits)
    total = decode(np.asarray(noisy_sum, np.int64), of_round.frac_bits)
    return encoding.figures(total, of_round.sum_noise_std, rounding=Rounding(cut=most_cut(of_round)))


def most_cut(task: Task) -> float:
    """Return the most by which a number of the opened sum is off as every client cuts its own sum to the grid."""
    return len(task.clients) * math.ldexp(1.0, -task.frac_bits)
