"""Central DP: the trusted server's noise, and a budget that ends the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from precad.clients.errors import ArgumentError
from precad.dp.accountants.levels import may_start
from precad.dp.accountants.pld import PldAccountant
from precad.lab.simulation.algorithms.user_dp_fedavg import UserDpFedAvg
from precad.lab.simulation.federation import Federation


class CentralDp(UserDpFedAvg):
    """UserDP-FedAvg that stops before the round that would pass the task's `epsilon_budget_clients_only`.

    The noise on the average is z S / (q n), where the source's printed one is n times too large.
    Source: Naseri, Hayes and De Cristofaro, "Local and Central Differential Privacy for Robustness and Privacy in
    Federated Learning", NDSS '22, Algorithm 2.
    """

    name: ClassVar[str] = "central-dp"
    budgets: ClassVar[tuple[str, ...]] = ("epsilon_budget_clients_only",)

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        if self.clipping.why_not_private:
            raise ArgumentError(
                "simulation.update_clipping: expected a private one for central-dp, which stops at a budget, "
                f"found {self.clipping.name!r}"
            )
        if self.task.epsilon_budget_clients_only is None:
            raise ArgumentError("task.epsilon_budget_clients_only: expected the budget of central-dp, found none")
        self._budget = self.task.epsilon_budget_clients_only

    def may_start(self, rounds_done: int, participation: Mapping[str, int]) -> bool:
        """Return whether epsilon after the coming round is within the budget."""
        return may_start(self._event, rounds_done, self.task.delta, self._budget, PldAccountant())
