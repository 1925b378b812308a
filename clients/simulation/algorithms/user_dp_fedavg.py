"""UserDP-FedAvg: clients train locally, a trusted server clips their updates and adds the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from clients.attacks import Honest
from clients.errors import ArgumentError
from clients.projection import project
from clients.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from clients.simulation.federation import Federation
from clients.simulation.guarantee import Guarantee
from clients.submission import encode_update
from dp.accounting import PldAccountant, SampledGaussian
from dp.rounded_gaussian import MAX_STD
from mpc import fixed_point

_HONEST = Honest()


class UserDpFedAvg(Algorithm):
    """theta + eta / (q n) (sum_i clip_S(theta_i - theta) + N(0, (z S)^2)), theta_i after V local descent steps.

    S is the task's `client_clip`, z its `noise_multiplier`, eta its `learning_rate` (1: the average itself). The server
    clips, so that a malicious client moves the sum by S at most. Clients are drawn by Poisson sampling and the divisor
    is a public constant, where the source draws a fixed number of clients and divides by it.
    Source: Xie, Long, Chen, Li, Chen and Li, "Unraveling the Connections between Privacy and Certified Robustness in
    Federated Learning Against Poisoning Attacks", CCS '23, Algorithm 1; McMahan, Ramage, Talwar and Zhang, "Learning
    Differentially Private Recurrent Language Models", ICLR '18.
    """

    name: ClassVar[str] = "user-dp-fedavg"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._refuse_rule()
        self._std = self.task.noise_multiplier * self.task.client_clip * float(2**self.task.frac_bits)
        if not self._std <= MAX_STD:
            raise ArgumentError(
                "task.noise_multiplier * client_clip * 2^frac_bits: expected at most 2^40 steps of the grid, "
                f"found {self._std:.6g}"
            )
        self._event = SampledGaussian(self.task.client_rate, self.task.noise_multiplier)

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """The server's part is on the integer grid, with exact noise."""
        task, federation, settings = self.task, self.federation, self.settings
        step = task.learning_rate / federation.nominal_clients
        trained = federation.descend_all(t, parameters, chosen, steps=settings.local_steps, rate=settings.local_rate)
        updates = {client: found - parameters.astype(np.float64) for client, found in trained.items()}
        updates = federation.attacked(t, parameters, updates, bound=task.client_clip, step=step)
        total = federation.randomness.noise(t, "server", self._std, task.dim)
        for update in updates.values():
            total = total + encode_update(project(update, task.client_clip), _HONEST, task)
        moved = parameters.astype(np.float64) + step * fixed_point.decode(total, task.frac_bits)
        return RoundOutcome(moved.astype(np.float32), tuple(updates))

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """A sampled Gaussian per round. Encoding rounds toward zero, so S bounds what is summed exactly."""
        epsilon = PldAccountant().epsilon(self._event, rounds, self.task.delta)
        return [
            Guarantee(
                unit="client",
                against="any other clients",
                epsilon=epsilon,
                delta=self.task.delta,
                note="the server is trusted: it sees every update, and who takes part",
            )
        ]
