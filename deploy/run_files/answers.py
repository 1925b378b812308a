"""Answers of queries, from the model that both servers keep: the sum that they opened, and its error bars."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.deploy.errors import ConfigError
from precad.dp.queries.estimates import Rounding, answer
from precad.protos.task.evaluation_figures import most_cut
from precad.protos.task.task import Task

_OF_MODEL: Final = 2.0**-23
"""By what share of itself a number of the sum may be off, as a model holds it in float32."""


def opened_sum(model: NDArray[np.float32], task: Task) -> NDArray[np.float64]:
    """Return the sum that both servers opened, (k,), from the model that it moved from zeros."""
    return model.astype(np.float64) * (task.divisor / task.learning_rate)


def answer_of(model: NDArray[np.float32], task: Task, level: float) -> dict[str, Any]:
    """Return a query's answer for programs: question, estimate, bins, noise, and what one client moves the sum by.

    grid_factor: by what the grid of the sum widens error bars at an epsilon (docs/reference/protocol-queries.md).
    level: of the error bars. Raises ConfigError for the task of a training.
    """
    if (query := task.query) is None:
        raise ConfigError("task.query: expected the task of a query, found a training's")
    encoding = query.encoding(task.frac_bits)
    total = opened_sum(model, task)
    rounding = Rounding(most_cut(task), _OF_MODEL)
    found = answer(encoding, total, task.sum_noise_std, rounding=rounding, share=query.share, level=level)
    estimate = None if found.estimate is None else asdict(found.estimate)
    group = {} if task.records_per_person == 1 else {"records_per_person": task.records_per_person}
    return {
        "query": query.model_dump(mode="json"),
        "estimate": estimate,
        "bins": [asdict(one) for one in found.bins],
        "level": found.level,
        "noise_std": task.sum_noise_std,
        "most_of_a_client": task.client_clip,
        "grid_factor": 1.0 + math.sqrt(task.dim) * math.ldexp(1.0, -task.frac_bits),
        **group,
    }
