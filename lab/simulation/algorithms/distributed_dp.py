"""Distributed DP: the clients share the noise among them, and a secure sum hides the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from precad.clients.errors import ArgumentError
from precad.lab.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from precad.lab.simulation.federation import Federation
from precad.lab.simulation.guarantee import Guarantee
from precad.protos.task.refusals import MIN_NOISE_STD_ON_GRID


class DistributedDp(Algorithm):
    """Every client adds N(0, (sigma R)^2 / tau); the server sees the sum alone, by secure aggregation, which is taken
    for granted here.

    The draws of tau clients add up to N(0, (sigma R)^2). That hides a record of one of them from the server and all
    other clients. A round with fewer than tau clients releases nothing: that depends on the draw of clients alone.
    Nobody can check what is summed. With tau = 1 it is local DP with a hidden sum.
    Source: PRECAD, Sec. 1 and Table 1, DDP; Truex et al., "A Hybrid Approach to Privacy-Preserving Federated Learning",
    AISec '19.
    """

    name: ClassVar[str] = "distributed-dp"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._tau = self.settings.non_colluding
        self._std = self.task.noise_std_on_grid / math.sqrt(self._tau)
        if self._tau > len(self.task.clients):
            raise ArgumentError(
                f"simulation.non_colluding: expected at most the {len(self.task.clients)} clients, found {self._tau}"
            )
        if not self._std >= MIN_NOISE_STD_ON_GRID:
            raise ArgumentError(
                "simulation.non_colluding: expected each client's noise to be at least "
                f"{MIN_NOISE_STD_ON_GRID:g} steps of the grid, found {self._std:.3g}"
            )

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round: the secure sum, decoded. Malicious clients add no noise."""
        task, federation = self.task, self.federation
        if len(chosen) < self._tau:
            return RoundOutcome(parameters, ())
        updates = federation.gradients(t, parameters, chosen, clip=federation.record_clip(), bound=math.inf)
        updates = federation.attacked(t, parameters, updates, bound=math.inf, step=self.step_at(t))
        total = np.zeros(task.dim, dtype=np.int64)
        accepted = []
        for client, update in updates.items():
            encoded = federation.encoded(client, update, is_clipped=False)
            if encoded is None:
                continue
            accepted.append(client)
            total += encoded
            if not federation.is_malicious(client):
                total += federation.randomness.noise(t, client, self._std, task.dim)
        return RoundOutcome(self._updated(parameters, total), tuple(accepted))

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return guarantees as one server's view of PRECAD: the noise of tau clients has its variance.

        The sum of tau draws rounded to the grid is one rounded draw, up to terms of order tau exp(-(pi std)^2) in its
        law. With std >= 8 steps these are below 1e-260. Our derivation, as in `precad.dp.accountants.pld.round_event`.
        """
        note = (
            f"if at least {self._tau} of the clients of every released round, the record's own among them, follow the "
            "protocol and collude with nobody, and the server learns the sum alone"
        )
        return [self._of_one_record(participation, against="the server and any other clients", note=note)]
