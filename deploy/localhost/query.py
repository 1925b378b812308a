"""A query on this machine: every role a process of its own, one round, and an answer with error bars."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from precad.deploy.configuration.query import Question, resolve_query
from precad.deploy.configuration.sections import Deployment
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.forks import Forks
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.run_files.folder import RunFolder
from precad.dp.queries.estimates import Answer, answer
from precad.protos.task.task import Task


class QueryRun(LocalRun):
    """One query. `run` returns its summary, which has the answer."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        question: Question,
        output: Path,
        console: Console,
        *,
        level: float,
        forks: Forks | None = None,
    ) -> None:
        """Validate everything, then write the folder. level: of the error bars. Raises as LocalRun, DataError."""
        self._question, self._level = question, level
        super().__init__(raw, output, console, forks=forks)

    def _resolve(self, raw: Mapping[str, Any], folder: RunFolder) -> tuple[dict[str, Any], Deployment]:
        return resolve_query(raw, self._question, folder)

    def _issue_certificates(self) -> None:
        """Take the identities of the run before it, if there is one."""
        if self._question.after is None:
            super()._issue_certificates()
        else:
            shutil.copytree(RunFolder(self._question.after.absolute()).pki, self.folder.pki)

    def _initial(self) -> NDArray[np.float32]:
        return np.zeros(self.deployment.task.dim, dtype=np.float32)

    def _look_for_divergence(self, t: int, parameters: NDArray[np.float32], table: LiveTable) -> None:
        """Look at nothing: a query's sum is no model that could diverge."""

    def _quality(self, parameters: NDArray[np.float32]) -> dict[str, Any]:
        return {"accuracy": None}

    def _conclude(self, final: NDArray[np.float32]) -> dict[str, Any]:
        """Write the opened sum, and return the answer."""
        task = self.deployment.task
        assert task.query is not None  # `resolve_query` asked one
        noisy_sum = opened_sum(final, task)
        np.save(self.folder.root / "sum.npy", noisy_sum)
        found = answer(
            task.query.encoding(task.frac_bits),
            noisy_sum,
            task.sum_noise_std,
            share=task.query.share,
            level=self._level,
        )
        return {"query": task.query.model_dump(mode="json"), **answered(found), **limits_of(task)}


def opened_sum(model: NDArray[np.float32], task: Task) -> NDArray[np.float64]:
    """Return the sum that both servers opened, (k,), from the model that it moved from zeros."""
    return model.astype(np.float64) * (task.divisor / task.learning_rate)


def answered(found: Answer) -> dict[str, Any]:
    """Return the answer for programs."""
    estimate = None if found.estimate is None else asdict(found.estimate)
    return {"estimate": estimate, "bins": [asdict(one) for one in found.bins], "level": found.level}


def limits_of(task: Task) -> dict[str, Any]:
    """Return the noise of each number of the sum, the most that one client moves it by, and the group of an epsilon."""
    group = {} if task.records_per_person == 1 else {"records_per_person": task.records_per_person}
    return {"noise_std": task.sum_noise_std, "most_of_a_client": task.client_clip, **group}
