"""`precad experiment userdp-certified`: Xie et al.'s Tables 4 and 5 and Figures 1 to 3, clean and certified accuracy.

UserDP-FedAvg on the digits 0 and 1 of MNIST, or on the airplanes and birds of CIFAR-10, 200 clients, by the paper's
Table 2. Figure 1 is the default; Figure 2 are other ways of clipping, Figure 3 records dealt by a Dirichlet
distribution.
What is computed of the trainings: `deploy.experiments.certified_accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from deploy.errors import ConfigError
from deploy.experiments.certified_accuracy import Setting, case_of
from deploy.experiments.runner import Case
from deploy.experiments.two_classes import pair_of
from dp.accounting import SampledGaussian
from dp.certified_prediction import Training
from protos.task import Task

SEEDS, QUICK_SEEDS = 100, 5
N_CLIENTS, DELTA = 200, 0.0029
CLIPPINGS: Final = ("flat", "per-layer", "private-quantile")
"""Those of `simulation.update_clipping` that an epsilon, and so a certificate, is proved of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Of the paper's Table 2, with the rounds that its epsilons are of."""

    table: str
    accuracies: Mapping[float, float]
    """Clean accuracy by noise multiplier."""
    sigmas: tuple[float, ...]
    """Of those, that are trained unless others are asked for."""
    rounds: int
    client_rate: float
    local_epochs: int
    batches_an_epoch: int
    """Of a client that has a 200th of the records."""
    stamped_batches_an_epoch: int
    """Of one that has each of them as it is and stamped."""
    local_batch: int
    local_rate: float
    client_clip: float
    """S."""


MNIST: Final = Row(
    table="Table 4",
    accuracies={
        0.5: 0.9972,
        0.6: 0.9969,
        0.8: 0.9971,
        1.0: 0.9959,
        1.5: 0.9886,
        1.8: 0.9742,
        2.3: 0.8915,
        3.0: 0.7279,
    },
    sigmas=(1.0, 1.8, 2.3),
    rounds=3,
    client_rate=0.1,
    local_epochs=10,
    batches_an_epoch=2,  # 63 or 64 records
    stamped_batches_an_epoch=3,
    local_batch=60,
    local_rate=0.02,
    client_clip=0.7,
)
CIFAR: Final = Row(
    table="Table 5",
    accuracies={1.7: 0.8182, 2.3: 0.8009, 2.6: 0.7927, 3.0: 0.7789, 4.0: 0.7307, 6.0: 0.6436},
    sigmas=(1.7, 3.0, 6.0),
    rounds=1,
    client_rate=0.2,
    local_epochs=5,
    batches_an_epoch=1,  # 50 records
    stamped_batches_an_epoch=2,
    local_batch=50,
    local_rate=0.05,
    client_clip=1.0,
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
    clipping: str = "flat"
    dirichlet_alpha: float | None = None
    """None: i.i.d."""
    public_start: Path | None = None
    """What trainings start from, in place of a model that is drawn."""

    def __post_init__(self) -> None:
        if self.clipping not in CLIPPINGS:
            raise ConfigError(f"--clipping: expected one of {', '.join(CLIPPINGS)}, found {self.clipping!r}")
        if self.dirichlet_alpha is not None and not 0 < self.dirichlet_alpha < math.inf:
            raise ConfigError(f"--dirichlet-alpha: expected a positive number, found {self.dirichlet_alpha}")

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
        """The paper's accuracies are of flat clipping and i.i.d. records of its data sets."""
        row, is_table = self.row, self.clipping == "flat" and self.dirichlet_alpha is None
        dealt = "i.i.d." if self.dirichlet_alpha is None else f"by Dir({self.dirichlet_alpha:g})"
        drawn = f"{row.client_rate * N_CLIENTS:g} of {N_CLIENTS}"
        return Setting(
            command="userdp-certified",
            title=f"{row.table} and Figure 1" if is_table else "Figures 2 and 3",
            algorithm=f"UserDP-FedAvg, {self.clipping} clipping, {N_CLIENTS} clients with records dealt {dealt},",
            table=row.table,
            accuracies=row.accuracies if is_table and self.dataset in ("mnist", "cifar10") else {},
            rounds=row.rounds,
            delta=DELTA,
            unit="attackers",
            differs=f"Clients are drawn by Poisson sampling of rate {row.client_rate:g} where the paper draws {drawn}.",
        )

    def case(self, sigma: float) -> Case:
        """Table 2 of the paper; SGD with momentum 0.9 and weight decay 0.0005."""
        row = self.row
        task = {
            "clients": N_CLIENTS,
            "rounds": self.rounds or row.rounds,
            "client_rate": row.client_rate,
            "record_rate": 1.0,
            "record_clip": 1.0,  # of no use here: the server clips updates
            "client_clip": row.client_clip,
            "delta": DELTA,
        }
        simulation: dict[str, Any] = {
            "algorithm": "user-dp-fedavg",
            "local_steps": row.local_epochs * row.batches_an_epoch,
            "local_batch": row.local_batch,
            "local_rate": row.local_rate,
            "local_momentum": 0.9,
            "local_weight_decay": 0.0005,
            "evaluate_every": row.rounds,
        }
        client: dict[str, Any] = {"dataset": self.dataset, "device": self.device}
        if self.clipping != "flat":
            simulation["update_clipping"] = self.clipping
        if self.dirichlet_alpha is not None:
            client |= {"partition": "dirichlet", "dirichlet_alpha": self.dirichlet_alpha}
        pair = pair_of(self.dataset)
        return case_of(sigma, pair, task=task, client=client, simulation=simulation, public_start=self.public_start)

    def training(self, task: Task) -> Training:
        """What an attacking client is accounted by, whichever of `CLIPPINGS` it is."""
        return Training(SampledGaussian(task.client_rate, task.noise_multiplier), task.rounds)
