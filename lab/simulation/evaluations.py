"""Evaluations by clients in a simulation: those of a deployment, integer for integer, on the draws of a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError
from precad.clients.models.learning import Learning
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.clients.training.held_out import HeldOut
from precad.lab.simulation.config import SimulationSettings
from precad.lab.simulation.randomness import Sources
from precad.lab.simulation.two_servers import CleartextServers, mpc_servers
from precad.protos.task.evaluation import has_accuracy, is_due
from precad.protos.task.evaluation_figures import figures_of
from precad.protos.task.task import Task

FIRST_NUMBER: Final = 1_000_000
"""The number of an evaluation is this and the rounds done: no round has it, so that its draws are its own."""


class SimulatedEvaluations:
    """The evaluations of one training, whose clients answer truly. Raises ArgumentError, GateUnavailableError."""

    def __init__(
        self,
        *,
        task: Task,
        settings: SimulationSettings,
        records: Mapping[str, Records],
        randomness: Sources,
        learning: Learning,
        device: str,
    ) -> None:
        """records: those that clients hold out."""
        if task.evaluation_round is None:
            raise ArgumentError(f"task.evaluation: expected 'clients', found {task.evaluation!r}")
        self._task, self._round, self._draw = task, task.evaluation_round, randomness
        conducts = dict.fromkeys(records, Honest())
        self._held_out = HeldOut(task=task, records=records, conducts=conducts, learning=learning, device=device)
        self._servers = mpc_servers(self._round) if settings.servers == "mpc" else CleartextServers(self._round)

    def is_due(self, n_done: int) -> bool:
        """Return whether an evaluation follows so many rounds."""
        return is_due(self._task.evaluation_every, n_done)

    def evaluate(self, n_done: int, parameters: NDArray[np.float32]) -> dict[str, Any]:
        """Return the figures of the model (d,) after so many rounds, each with its error bar."""
        number, of_round = FIRST_NUMBER + n_done, self._round
        chosen = self._draw.chosen(number, sorted(self._task.clients), of_round.client_rate)
        total = self._servers.check_and_sum(number, {c: self._held_out.evaluate(c, parameters) for c in chosen}).total
        for party in (0, 1):
            total = total + self._draw.noise(number, f"server-{party}", of_round.noise_std_on_grid, of_round.dim)
        found = figures_of(self._task, [int(x) for x in total]).named(has_accuracy=has_accuracy(self._task.loss))
        return {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in found.items()}
