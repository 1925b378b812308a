"""`precad experiment insdp-certified`: Xie et al.'s Tables 7 and 8 and Figures 5a, 6a and 8c, 8d, certified accuracy.

InsDP-FedAvg on the digits 0 and 1 of MNIST, or on the airplanes and birds of CIFAR-10: 10 clients, all of them in every
round, steps of DP-SGD on batches of 50 in expectation; attackers are poisoned records of one client. On MNIST the paper
states 25 steps, of which its epsilons are not: they are of 26.
What is computed of the trainings: `deploy.experiments.certified_accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from deploy.experiments.certified_accuracy import Setting, case_of
from deploy.experiments.runner import Case
from deploy.experiments.two_classes import pair_of
from dp.accounting import SampledGaussian, effective_noise_multiplier
from dp.certified_prediction import Training
from protos.task import Task

SEEDS = 100
N_CLIENTS, DELTA = 10, 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Of the paper's Table 2, with the rounds and steps that its epsilons are of."""

    table: str
    figures: str
    accuracies: Mapping[float, float]
    """Clean accuracy by noise multiplier."""
    sigmas: tuple[float, ...]
    """Of those, that are trained unless others are asked for."""
    quick_sigmas: tuple[float, ...]
    quick_seeds: int
    rounds: int
    local_steps: int
    record_rate: float
    """50 of a client's records."""
    local_rate: float
    record_clip: float
    """S."""


MNIST: Final = Row(
    table="Table 7",
    figures="Figures 5a and 8c",
    accuracies={
        1.0: 0.9973,
        2.0: 0.9973,
        3.0: 0.9970,
        4.0: 0.9965,
        5.0: 0.9957,
        8.0: 0.9799,
        10.0: 0.9330,
        15.0: 0.7712,
    },
    sigmas=(3.0, 5.0, 10.0),
    quick_sigmas=(3.0, 5.0, 10.0),
    quick_seeds=5,
    rounds=3,
    local_steps=26,
    record_rate=50 / 1266,
    local_rate=0.02,
    record_clip=0.7,
)
CIFAR: Final = Row(
    table="Table 8",
    figures="Figures 6a and 8d",
    accuracies={
        1.0: 0.8791,
        2.0: 0.8602,
        3.0: 0.8385,
        4.0: 0.8143,
        5.0: 0.7759,
        6.0: 0.7269,
        7.0: 0.6647,
        8.0: 0.6226,
    },
    sigmas=(2.0, 4.0, 8.0),
    quick_sigmas=(4.0,),
    quick_seeds=2,
    rounds=1,
    local_steps=100,
    record_rate=50 / 1000,
    local_rate=0.05,
    record_clip=1.0,
)


def row_of(dataset: str) -> Row:
    """That of the data set's pictures; MNIST's, but for CIFAR-10."""
    return CIFAR if dataset == "cifar10" else MNIST


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run. No sigmas and no rounds: those of the data set's row."""

    sigmas: Sequence[float] = ()
    rounds: int | None = None
    seeds: int = SEEDS
    """Trainings of each sigma."""
    dataset: str = "mnist"
    device: str = "auto"
    public_start: Path | None = None
    """What trainings start from, in place of a model that is drawn."""

    @property
    def row(self) -> Row:
        """The data set's."""
        return row_of(self.dataset)

    def filled(self) -> Experiment:
        """With what the row has in place of what is left out."""
        return replace(self, sigmas=tuple(self.sigmas or self.row.sigmas), rounds=self.rounds or self.row.rounds)

    def starting_from(self, model: Path) -> Experiment:
        """The same, from that public model."""
        return replace(self, public_start=model)

    @property
    def setting(self) -> Setting:
        """The paper's accuracies are of its data sets."""
        row = self.row
        return Setting(
            command="insdp-certified",
            title=f"{row.table} and {row.figures}",
            algorithm=f"InsDP-FedAvg, {N_CLIENTS} clients with records dealt i.i.d.,",
            table=row.table,
            accuracies=row.accuracies if self.dataset in ("mnist", "cifar10") else {},
            rounds=row.rounds,
            delta=DELTA,
            unit="poisoned records",
            differs="Batches are Poisson samples, of 50 in expectation, where the paper's have 50.",
        )

    def case(self, sigma: float) -> Case:
        """Table 2 of the paper; SGD with momentum 0.9 and weight decay 0.0005 on noisy gradients, records dealt i.i.d.

        24 fractional bits: all that rounding adds to a record's clip is 10^-5 of it.
        """
        row = self.row
        task = {
            "clients": N_CLIENTS,
            "rounds": self.rounds or row.rounds,
            "client_rate": 1.0,
            "record_rate": row.record_rate,
            "record_clip": row.record_clip,
            "client_clip": row.record_clip,  # of no use here: clients clip records
            "delta": DELTA,
            "frac_bits": 24,
        }
        simulation = {
            "algorithm": "ins-dp-fedavg",
            "local_steps": row.local_steps,
            "local_rate": row.local_rate,
            "local_momentum": 0.9,
            "local_weight_decay": 0.0005,
            "evaluate_every": row.rounds,
        }
        client = {"dataset": self.dataset, "device": self.device}
        pair = pair_of(self.dataset)
        return case_of(sigma, pair, task=task, client=client, simulation=simulation, public_start=self.public_start)

    def training(self, task: Task) -> Training:
        """What a poisoned record is accounted by: every step of its client, which is in every round."""
        sigma = effective_noise_multiplier(task.noise_multiplier, task.record_clip, task.dim, task.frac_bits)
        return Training(SampledGaussian(task.record_rate, sigma), task.rounds * self.row.local_steps)
