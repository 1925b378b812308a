"""`precad experiment insdp-certified`: Xie et al.'s Tables 7 and 8 and Figures 5a, 6a and 8c, 8d, certified accuracy.

InsDP-FedAvg trains on the digits 0 and 1 of MNIST, or on the airplanes and birds of CIFAR-10. All of the 10 clients are
in every round, with steps of DP-SGD on batches of 50 in expectation. Attackers are poisoned records of one client. On
MNIST the paper states 25 steps, of which its epsilons are not: they are of 26.
What is computed of the trainings: `precad.lab.papers.xie.certified_accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from precad.dp.accountants.pld import SampledGaussian, effective_noise_multiplier
from precad.dp.certificates.prediction import Training
from precad.lab.papers.runner import Case
from precad.lab.papers.xie import certified_setting
from precad.lab.papers.xie.certified_setting import Setting
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(certified_setting.Row):
    """Hold a row of the paper's Table 2, with the steps that its epsilons are of."""

    figures: str
    quick_sigmas: tuple[float, ...]
    quick_seeds: int
    local_steps: int
    record_rate: float
    """50 of a client's records."""
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
    n_clients=10,
    delta=1e-5,
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
    n_clients=10,
    delta=1e-5,
    rounds=1,
    local_steps=100,
    record_rate=50 / 1000,
    local_rate=0.05,
    record_clip=1.0,
)


ROWS: Final[Mapping[str, Row]] = {"mnist": MNIST, "cifar10": CIFAR}


def row_of(dataset: str) -> Row:
    """Return MNIST's for what has the shape of digits."""
    return ROWS[dataset if dataset in ROWS else "mnist"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(certified_setting.Experiment):
    """Describe what is run."""

    @property
    def row(self) -> Row:
        """Return the data set's."""
        return row_of(self.dataset)

    @property
    def setting(self) -> Setting:
        """See base."""
        row = self.row
        return Setting(
            command="insdp-certified",
            title=f"{row.table} and {row.figures}",
            algorithm=f"InsDP-FedAvg, {row.n_clients} clients with records dealt i.i.d.,",
            unit="poisoned records",
            differs="Batches are Poisson samples, of 50 in expectation, where the paper's have 50.",
        )

    def case(self, sigma: float) -> Case:
        """Return the case of one sigma. SGD is on noisy gradients, records are dealt i.i.d. With 24 fractional bits,
        all that rounding adds to a record's clip is 10^-5 of it."""
        row = self.row
        task = {
            "client_rate": 1.0,
            "record_rate": row.record_rate,
            "record_clip": row.record_clip,
            "client_clip": row.record_clip,  # of no use here: clients clip records
            "frac_bits": 24,
        }
        simulation = {"algorithm": "ins-dp-fedavg", "local_steps": row.local_steps}
        return self._case(sigma, task=task, client={}, simulation=simulation)

    def printed(self, case: Case) -> float | None:
        """See base."""
        is_papers = self.dataset in ROWS and self.rounds == self.row.rounds
        return self.row.accuracies.get(case.labels["sigma"]) if is_papers else None

    def training(self, task: Task) -> Training:
        """Return what a poisoned record is accounted by: every step of its client, which is in every round."""
        sigma = effective_noise_multiplier(task.noise_multiplier, task.record_clip, task.dim, task.frac_bits)
        return Training(SampledGaussian(task.record_rate, sigma), task.rounds * self.row.local_steps)


def quick(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    row = row_of(given["dataset"])
    return {"sigmas": row.quick_sigmas, "seeds": row.quick_seeds}
