"""PRECAD: two servers, shares, a norm check, joint noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from clients.errors import ArgumentError
from clients.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from clients.simulation.federation import Federation
from clients.simulation.guarantee import Guarantee
from clients.simulation.two_servers import CleartextServers, MpcServers, TwoServers
from dp.accounting import PldAccountant, View, round_event
from mpc.ring import RingArray
from protos.model_update import updated

_AGAINST = {
    View.ONE_SERVER: "one aggregation server and any other clients",
    View.CLIENTS_ONLY: "any other clients, no server",
}


class Precad(Algorithm):
    """The round of a deployment, integer for integer.

    `validation` off: the servers check nothing. `client_clipping` off as well: clients do not project their update,
    the paper's faster version with only privacy (Sec. 7). Source: PRECAD, Algorithms 1 and 2.
    """

    name: ClassVar[str] = "precad"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._refuse_rule()
        settings = self.settings
        if settings.validation and not settings.client_clipping:
            raise ArgumentError("simulation.validation: expected false where clients do not clip, found true")
        if settings.servers == "mpc" and not settings.validation:
            raise ArgumentError("simulation.servers: expected 'cleartext' without validation, found 'mpc'")
        self._bound = self.task.client_clip if settings.client_clipping else math.inf
        self._servers: TwoServers = (
            MpcServers(self.task)
            if settings.servers == "mpc"
            else CleartextServers(self.task, has_validation=settings.validation)
        )

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Algorithm 2 at every chosen client, then Algorithm 1, lines 4 to 6."""
        task, draw = self.task, self.federation.randomness
        uploads = self._uploads(t, parameters, chosen)
        checked = self._servers.check_and_sum(t, uploads)
        noisy_sum = checked.total
        for party in (0, 1):
            noisy_sum = noisy_sum + draw.noise(t, f"server-{party}", task.noise_std_on_grid, task.dim)
        return RoundOutcome(updated(parameters, noisy_sum, task), checked.accepted, checked.rejected)

    def _uploads(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> dict[str, RingArray]:
        federation, task = self.federation, self.task
        updates = federation.gradients(t, parameters, chosen, clip=federation.record_clip(), bound=self._bound)
        enforced = task.client_clip if self.settings.validation else math.inf
        step = task.learning_rate / task.divisor
        updates = federation.attacked(t, parameters, updates, bound=enforced, step=step)
        encoded = {c: federation.encoded(c, u, is_clipped=self.settings.client_clipping) for c, u in updates.items()}
        return {client: upload for client, upload in encoded.items() if upload is not None}

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Of one record of the client that was in most rounds, in both views (`dp.accounting`)."""
        epsilons = self._epsilons(max(participation.values(), default=0))
        return [
            Guarantee(unit="record", against=_AGAINST[view], epsilon=epsilon, delta=self.task.delta)
            for view, epsilon in epsilons.items()
        ]

    def may_start(self, rounds_done: int, participation: Mapping[str, int]) -> bool:
        """As the servers' ledger: whoever is drawn, nobody's epsilon passes a budget of the task."""
        budgets = (self.task.epsilon_budget_one_server, self.task.epsilon_budget_clients_only)
        if all(budget is None for budget in budgets):
            return True
        epsilons = self._epsilons(max(participation.values(), default=0) + 1)
        return all(budget is None or epsilons[view] <= budget for view, budget in zip(View, budgets, strict=True))

    def _epsilons(self, rounds: int) -> dict[View, float]:
        task = self.task
        return {
            view: PldAccountant().epsilon(
                round_event(
                    view,
                    record_sampling_rate=task.record_rate,
                    noise_multiplier=task.noise_multiplier,
                    record_clip=task.record_clip,
                    dim=task.dim,
                    frac_bits=task.frac_bits,
                ),
                rounds,
                task.delta,
            )
            for view in View
        }
