"""`precad experiment userdp-certified`: Xie et al.'s Table 4 and Figures 1 to 3 on MNIST, clean and certified accuracy.

UserDP-FedAvg on the digits 0 and 1, 200 clients, 20 of them in a round, 10 local epochs, by the paper's Table 2. Figure
1 is the default; Figure 2 are other ways of clipping, Figure 3 records dealt by a Dirichlet distribution. What is
computed of the trainings: `deploy.experiments.certified_accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.errors import ConfigError
from deploy.experiments.certified_accuracy import Setting, case_of
from deploy.experiments.runner import Case
from dp.accounting import SampledGaussian
from dp.certified_prediction import Training
from protos.task import Task

ROUNDS, SEEDS, QUICK_SEEDS = 3, 100, 5
TABLE_4: Final[Mapping[float, float]] = {
    0.5: 0.9972,
    0.6: 0.9969,
    0.8: 0.9971,
    1.0: 0.9959,
    1.5: 0.9886,
    1.8: 0.9742,
    2.3: 0.8915,
    3.0: 0.7279,
}
"""Clean accuracy by noise multiplier."""
SIGMAS: Final = (1.0, 1.8, 2.3)
N_CLIENTS, CLIENT_RATE, DELTA = 200, 0.1, 0.0029
LOCAL_EPOCHS, BATCHES_AN_EPOCH = 10, 2
"""A client has 63 or 64 records, and a batch 60."""
LOCAL_RATE: Final = 0.02
CLIPPINGS: Final = ("flat", "per-layer", "private-quantile")
"""Those of `simulation.update_clipping` that an epsilon, and so a certificate, is proved of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run."""

    sigmas: Sequence[float] = SIGMAS
    rounds: int = ROUNDS
    seeds: int = SEEDS
    """Trainings of each sigma."""
    dataset: str = "mnist"
    device: str = "auto"
    clipping: str = "flat"
    dirichlet_alpha: float | None = None
    """None: i.i.d."""

    def __post_init__(self) -> None:
        if self.clipping not in CLIPPINGS:
            raise ConfigError(f"--clipping: expected one of {', '.join(CLIPPINGS)}, found {self.clipping!r}")
        if self.dirichlet_alpha is not None and not 0 < self.dirichlet_alpha < math.inf:
            raise ConfigError(f"--dirichlet-alpha: expected a positive number, found {self.dirichlet_alpha}")

    @property
    def setting(self) -> Setting:
        """The paper's accuracies are of flat clipping and i.i.d. records."""
        is_table = self.clipping == "flat" and self.dirichlet_alpha is None
        dealt = "i.i.d." if self.dirichlet_alpha is None else f"by Dir({self.dirichlet_alpha:g})"
        return Setting(
            command="userdp-certified",
            title="Table 4 and Figure 1" if is_table else "Figures 2 and 3",
            algorithm=f"UserDP-FedAvg, {self.clipping} clipping, {N_CLIENTS} clients with records dealt {dealt},",
            table="Table 4",
            accuracies=TABLE_4 if is_table else {},
            rounds=ROUNDS,
            delta=DELTA,
            unit="attackers",
            differs=f"Clients are drawn by Poisson sampling of rate {CLIENT_RATE:g} where the paper draws 20 of 200.",
        )

    def case(self, sigma: float) -> Case:
        """Table 2 of the paper; SGD with momentum 0.9 and weight decay 0.0005."""
        task = {
            "clients": N_CLIENTS,
            "rounds": self.rounds,
            "client_rate": CLIENT_RATE,
            "record_rate": 1.0,
            "record_clip": 1.0,  # of no use here: the server clips updates
            "client_clip": 0.7,
            "delta": DELTA,
        }
        simulation: dict[str, Any] = {
            "algorithm": "user-dp-fedavg",
            "local_steps": LOCAL_EPOCHS * BATCHES_AN_EPOCH,
            "local_batch": 60,
            "local_rate": LOCAL_RATE,
            "local_momentum": 0.9,
            "local_weight_decay": 0.0005,
            "evaluate_every": ROUNDS,
        }
        client: dict[str, Any] = {"dataset": self.dataset, "device": self.device}
        if self.clipping != "flat":
            simulation["update_clipping"] = self.clipping
        if self.dirichlet_alpha is not None:
            client |= {"partition": "dirichlet", "dirichlet_alpha": self.dirichlet_alpha}
        return case_of(sigma, task=task, client=client, simulation=simulation)

    def training(self, task: Task) -> Training:
        """What an attacking client is accounted by, whichever of `CLIPPINGS` it is."""
        return Training(SampledGaussian(task.client_rate, task.noise_multiplier), task.rounds)
