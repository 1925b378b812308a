"""Turn updates into a step of the model, for the algorithms whose one server sees every update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from precad.lab.simulation.algorithms.algorithm import Algorithm, Parameters
from precad.lab.simulation.federation import Vector
from precad.lab.simulation.guarantee import REALISED, Guarantee


class PlainServer(Algorithm):
    """A server that holds all updates of a round in the clear."""

    takes_rule: ClassVar[bool] = True

    def moved(self, t: int, parameters: Parameters, updates: Mapping[str, Vector]) -> Parameters:
        """Return theta + eta / W * sum. With a rule, its estimate of the mean times q n, the public expected number of
        clients, stands for the sum."""
        total = np.zeros(self.task.dim)
        if self.federation.rule is None:
            for update in updates.values():
                total += update
        else:
            total = self.task.expected_clients * self.federation.aggregate(t, updates)
        return self._moved(parameters, total)

    def nothing(self, unit: Literal["record", "client"]) -> Guarantee:
        """Return the guarantee of an algorithm that protects nobody."""
        why = "nothing is clipped or noised for it"
        return Guarantee(unit=unit, against="anybody", epsilon=None, delta=self.task.delta, note=why)

    def of_rule(self, rounds: int) -> list[Guarantee]:
        """Return what the rule adds: a guarantee of a whole client, against those who see the models only."""
        rule = self.federation.rule
        if rule is None:
            return []
        epsilon = rule.epsilon(rounds, self.task.delta)
        trusted = "the server is trusted: it sees every update, and who takes part"
        nothing = f"the rule {rule.name!r} is no privacy mechanism"
        return [
            Guarantee(
                unit="client",
                against="any other clients",
                epsilon=epsilon,
                delta=self.task.delta,
                note=nothing if epsilon is None else f"{trusted}; {REALISED}",
            )
        ]
