"""Federated SGD with nothing around it: the ceiling for accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from precad.clients.gradients.record_clipping import RecordClip
from precad.lab.simulation.algorithms.algorithm import Parameters, RoundOutcome
from precad.lab.simulation.algorithms.plain import PlainServer
from precad.lab.simulation.guarantee import Guarantee


class NonPrivate(PlainServer):
    """No clipping, no noise, no check. Source: PRECAD, Sec. 6.1, non-private setting."""

    name: ClassVar[str] = "non-private"

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round: the sum of the sampled records' gradients, or what a robust rule makes of the clients'."""
        federation = self.federation
        updates = federation.gradients(t, parameters, chosen, clip=RecordClip(math.inf), bound=math.inf)
        updates = federation.attacked(t, parameters, updates, bound=math.inf, step=self.step_at(t))
        return RoundOutcome(self.moved(t, parameters, updates), tuple(updates))

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return no guarantee of the algorithm's own, with what the rule adds."""
        return [self.nothing("record"), *self.of_rule(rounds)]
