"""InsDP-FedAvg: every client runs DP-SGD on its own records, several steps a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from precad.clients.gradients.model_stack import Models
from precad.clients.training.descent import stepped
from precad.clients.training.local_update import sample_records
from precad.lab.simulation.algorithms.algorithm import Parameters, RoundOutcome
from precad.lab.simulation.algorithms.plain import PlainServer
from precad.lab.simulation.federation import Vector
from precad.lab.simulation.guarantee import Guarantee
from precad.mpc import fixed_point


class InsDpFedAvg(PlainServer):
    """V local steps theta_i <- theta_i - rate / (p N_i) (clipped gradient sum + N(0, (sigma R)^2)); the server averages
    theta_i - theta over q n.

    Each step draws its records by Poisson sampling. With V = 1 it is InsDP-FedSGD. The divisor is the number of clients
    expected, where the source divides by the number drawn. `local_steps` is V. With `local_momentum` and
    `local_weight_decay` the noisy gradients are what PyTorch's SGD is given, from rest in every round: post-processing,
    which costs nothing.
    Source: Xie et al., CCS '23, Algorithms 2 and 3.
    """

    name: ClassVar[str] = "ins-dp-fedavg"
    trains_locally: ClassVar[bool] = True

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round. The server does nothing for privacy."""
        updates = {
            client: update
            for group in self.federation.groups(chosen)
            for client, update in zip(group, self._train(t, parameters, group), strict=True)
        }
        updates = self.federation.attacked(t, parameters, updates, bound=math.inf, step=self.step_at(t))
        return RoundOutcome(self.moved(t, parameters, updates), tuple(updates))

    def _train(self, t: int, parameters: Parameters, clients: Sequence[str]) -> Models:
        """Return theta_i - theta after V steps of DP-SGD, a step of all clients at a time; (n, d)."""
        federation, task = self.federation, self.task
        records = [federation.records[client] for client in clients]
        draws = [federation.randomness.records(t, client) for client in clients]
        settings = self.settings
        at = np.repeat(parameters.astype(np.float64)[None], len(clients), axis=0)
        velocity = np.zeros_like(at)
        for v in range(settings.local_steps):
            samples = [
                own.take(sample_records(len(own), task.rate_of(client), draw))
                for client, own, draw in zip(clients, records, draws, strict=True)
            ]
            updates = -federation.own_models().clipped_sums(at, samples, federation.record_clip())
            for i, client in enumerate(clients):
                noisy, size = self._noised(t, v, client, updates[i]), task.rate_of(client) * task.clients[client]
                at[i], velocity[i] = stepped(settings, at[i], velocity[i], noisy, rate=settings.local_rate, size=size)
        return at - parameters.astype(np.float64)

    def _noised(self, t: int, v: int, client: str, update: Vector) -> Vector:
        """Return the vector on the grid, with the client's own noise. A malicious client adds none."""
        federation, task = self.federation, self.task
        encoded = fixed_point.encode(update, task.frac_bits)
        if not federation.is_malicious(client):
            encoded = encoded + federation.randomness.noise(t, f"{client}/{v}", task.noise_std_on_grid, task.dim)
        return fixed_point.decode(encoded, task.frac_bits)

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Account V sampled Gaussians per round that the client took part in; records of different clients in
        parallel."""
        who, steps = "everybody but its own client", self.settings.local_steps
        return [self._of_one_record(participation, against=who, steps_per_round=steps), *self.of_rule(rounds)]
