"""A query on this machine: every role a process of its own, one round, and an answer with error bars."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
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
from precad.deploy.run_files.answers import answer_of, opened_sum
from precad.deploy.run_files.folder import RunFolder


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
        np.save(self.folder.root / "sum.npy", opened_sum(final, self.deployment.task))
        return answer_of(final, self.deployment.task, self._level)
