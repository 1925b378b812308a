"""Local DP: every client adds all the noise that protects it, and trusts nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from precad.clients.training.projection import project
from precad.lab.simulation.algorithms.algorithm import Parameters, RoundOutcome
from precad.lab.simulation.algorithms.plain import PlainServer
from precad.lab.simulation.federation import Federation, Vector
from precad.lab.simulation.guarantee import Guarantee
from precad.mpc import fixed_point


class LocalDp(PlainServer):
    """Clipped gradient sums, encoded, with noise N(0, (sigma R)^2) of the client's own on the grid, in the clear.

    `client_clipping`: the client projects its upload onto the ball of radius C after the noise. The server, which sees
    the upload, refuses a longer one. Without `validation` the server takes every upload, so that C binds the honest
    alone. Malicious clients add no noise.
    Source: PRECAD, Sec. 6.1 and 6.3, LDP setting. In Xie et al., CCS '23, the same training, with records called
    instances, is InsDP-FedSGD.
    """

    name: ClassVar[str] = "local-dp"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._bound = self.task.client_clip if self.settings.client_clipping else math.inf
        self._enforced = self._bound if self.settings.validation else math.inf

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round. The noise of all clients adds up in the model."""
        federation = self.federation
        exact = federation.gradients(t, parameters, chosen, clip=federation.record_clip(), bound=math.inf)
        updates = federation.attacked(t, parameters, exact, bound=self._enforced, step=self.step_at(t))
        sent = {
            client: update if federation.is_malicious(client) else self._noised(t, client, update)
            for client, update in updates.items()
        }
        accepted = {client: update for client, update in sent.items() if np.linalg.norm(update) <= self._enforced}
        rejected = tuple(client for client in sent if client not in accepted)
        return RoundOutcome(self.moved(t, parameters, accepted), tuple(accepted), rejected)

    def _noised(self, t: int, client: str, update: Vector) -> Vector:
        noise = self.federation.randomness.noise(t, client, self.task.noise_std_on_grid, self.task.dim)
        noisy = fixed_point.decode(fixed_point.encode(update, self.task.frac_bits) + noise, self.task.frac_bits)
        return noisy if math.isinf(self._bound) else project(noisy, self._bound)

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return guarantees as PRECAD's against one server: one draw of N(0, (sigma R)^2) hides a record, for everybody
        to see."""
        return [
            self._of_one_record(participation, against="everybody but its own client"),
            *self.of_rule(rounds),
        ]
