"""Define what `userdp-certified` and `insdp-certified` train: noise multipliers of a row of Xie et al.'s Table 2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from precad.dp.certificates.prediction import Training
from precad.lab.papers.runner import Case
from precad.lab.papers.xie.classes import Classes, Starting, classes_of
from precad.protos.task.task import Task

SEEDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold a row of Table 2, with the rounds that the paper's epsilons are of."""

    table: str
    """Table of the paper which has `accuracies`."""
    accuracies: Mapping[float, float]
    """Clean accuracy by noise multiplier."""
    sigmas: tuple[float, ...]
    """Those noise multipliers that are trained unless others are asked for."""
    n_clients: int
    delta: float
    rounds: int
    local_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Describe what an experiment is about, in the paper and in words."""

    command: str
    title: str
    algorithm: str
    """With its clients, as a sentence begins."""
    unit: str
    """Attackers, in the plural."""
    differs: str
    """From the paper: a sentence."""
    has_rounds: bool = True
    """Whether the paper says, or its epsilons do, after how many rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Starting, ABC):
    """Trainings of several noise multipliers, and by what an attacker is accounted in them. No sigmas and no rounds:
    those of the data set's row."""

    sigmas: Sequence[float] = ()
    rounds: int | None = None
    seeds: int = SEEDS
    """Trainings of each sigma."""

    @property
    @abstractmethod
    def row(self) -> Row:
        """Return the data set's."""

    @property
    def told(self) -> Classes:
        """Return the classes that are told apart."""
        return classes_of(self.dataset)

    @property
    @abstractmethod
    def setting(self) -> Setting:
        """Return the setting."""

    @abstractmethod
    def case(self, sigma: float) -> Case:
        """Return one noise multiplier, by Table 2 of the paper."""

    def cases(self) -> list[Case]:
        """Return all that is trained."""
        return [self.case(sigma) for sigma in self.sigmas]

    @abstractmethod
    def printed(self, case: Case) -> float | None:
        """Return the clean accuracy that the paper prints of a case, after the row's rounds; None where it has none."""

    @abstractmethod
    def training(self, task: Task) -> Training:
        """Return what an attacker is accounted by, in the task that a case resolves to."""

    def filled(self) -> Self:
        """Return the experiment with what the row has in place of what is left out."""
        return replace(self, sigmas=tuple(self.sigmas or self.row.sigmas), rounds=self.rounds or self.row.rounds)

    def _case(
        self,
        sigma: float,
        which: str = "",
        *,
        task: Mapping[str, Any],
        client: Mapping[str, Any],
        simulation: Mapping[str, Any],
        **labels: str,
    ) -> Case:
        """Return the case, whose folder is of sigma and `which`; the server takes the average itself. SGD with momentum
        0.9 and weight decay 0.0005."""
        name, row, told = f"sigma-{sigma:g}{which}", self.row, self.told
        common = {
            "name": name,
            "clients": row.n_clients,
            "rounds": self.rounds or row.rounds,
            "noise_multiplier": sigma,
            "learning_rate": 1.0,
            "delta": row.delta,
            "model": told.model,
        }
        solver: dict[str, Any] = {
            "local_rate": row.local_rate,
            "local_momentum": 0.9,
            "local_weight_decay": 0.0005,
            "evaluate_every": row.rounds,
        }
        if self.public_start is not None:
            solver["initial_model"] = str(self.public_start)
        config = {
            "task": {**common, **task},
            "client": {"dataset": self.dataset, "device": self.device, "classes": list(told.labels), **client},
            "simulation": {**solver, **simulation},
        }
        return Case(name=name, labels={"sigma": sigma, **labels}, config=config)
