"""`precad experiment insdp-certified`: Xie et al.'s Table 7 and Figures 5a and 8c, certified accuracy of InsDP-FedAvg.

MNIST's digits 0 and 1 on 10 clients, all of them in every round, 26 local steps of DP-SGD on batches of 50 in
expectation; attackers are poisoned records of one client. The paper states 25 steps, of which its epsilons are not.
What is computed of the trainings: `deploy.experiments.certified_accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.experiments.certified_accuracy import Setting, case_of
from deploy.experiments.runner import Case
from dp.accounting import SampledGaussian, effective_noise_multiplier
from dp.certified_prediction import Training
from protos.task import Task

ROUNDS, SEEDS, QUICK_SEEDS = 3, 100, 5
TABLE_7: Final[Mapping[float, float]] = {
    1.0: 0.9973,
    2.0: 0.9973,
    3.0: 0.9970,
    4.0: 0.9965,
    5.0: 0.9957,
    8.0: 0.9799,
    10.0: 0.9330,
    15.0: 0.7712,
}
"""Clean accuracy by noise multiplier."""
SIGMAS: Final = (3.0, 5.0, 10.0)
N_CLIENTS, LOCAL_STEPS, DELTA = 10, 26, 1e-5
RECORD_RATE: Final = 50 / 1266
"""A batch of a client's 1266 or 1267 records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run."""

    sigmas: Sequence[float] = SIGMAS
    rounds: int = ROUNDS
    seeds: int = SEEDS
    """Trainings of each sigma."""
    dataset: str = "mnist"
    device: str = "auto"

    @property
    def setting(self) -> Setting:
        """Of Tables 2 and 7."""
        return Setting(
            command="insdp-certified",
            title="Table 7 and Figures 5a and 8c",
            algorithm=f"InsDP-FedAvg, {N_CLIENTS} clients with records dealt i.i.d.,",
            table="Table 7",
            accuracies=TABLE_7,
            rounds=ROUNDS,
            delta=DELTA,
            unit="poisoned records",
            differs="Batches are Poisson samples, of 50 in expectation, where the paper's have 50.",
        )

    def case(self, sigma: float) -> Case:
        """Table 2 of the paper; SGD with momentum 0.9 and weight decay 0.0005 on noisy gradients, records dealt i.i.d.

        24 fractional bits: all that rounding adds to a record's clip is 10^-5 of it.
        """
        task = {
            "clients": N_CLIENTS,
            "rounds": self.rounds,
            "client_rate": 1.0,
            "record_rate": RECORD_RATE,
            "record_clip": 0.7,
            "client_clip": 0.7,  # of no use here: clients clip records
            "delta": DELTA,
            "frac_bits": 24,
        }
        simulation = {
            "algorithm": "ins-dp-fedavg",
            "local_steps": LOCAL_STEPS,
            "local_rate": 0.02,
            "local_momentum": 0.9,
            "local_weight_decay": 0.0005,
            "evaluate_every": ROUNDS,
        }
        client = {"dataset": self.dataset, "device": self.device}
        return case_of(sigma, task=task, client=client, simulation=simulation)

    def training(self, task: Task) -> Training:
        """What a poisoned record is accounted by: every step of its client, which is in every round."""
        sigma = effective_noise_multiplier(task.noise_multiplier, task.record_clip, task.dim, task.frac_bits)
        return Training(SampledGaussian(task.record_rate, sigma), task.rounds * LOCAL_STEPS)
