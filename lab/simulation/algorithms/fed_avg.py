"""Federated averaging with nothing around it but, where one is named, a robust rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from precad.lab.simulation.algorithms.algorithm import Parameters, RoundOutcome
from precad.lab.simulation.algorithms.plain import PlainServer
from precad.lab.simulation.guarantee import Guarantee


class FedAvg(PlainServer):
    """theta + eta / (q n) sum_i (theta_i - theta), theta_i after V local descent steps; no clipping, no noise.

    With a rule, its estimate of the mean difference stands for the average. `norm-bounding` is the defence of Sun,
    Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019. The divisor is the expected number
    of clients, where the source weights by the records of those who came.
    Source: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS '17, Algorithm 1.
    """

    name: ClassVar[str] = "fedavg"
    trains_locally: ClassVar[bool] = True

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round: the average, or what a robust rule makes of the clients' differences."""
        updates = self.federation.differences(t, parameters, chosen)
        updates = self.federation.attacked(t, parameters, updates, bound=math.inf, step=self.step_at(t))
        return RoundOutcome(self.moved(t, parameters, updates), tuple(updates))

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return no guarantee of the algorithm's own, with what the rule adds."""
        return [self.nothing("client"), *self.of_rule(rounds)]
