"""Central DP for records: a trusted server sees every update, and adds the noise once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from precad.lab.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from precad.lab.simulation.guarantee import Guarantee


class CentralRecordDp(Algorithm):
    """Clipped gradient sums, encoded, their sum with one draw of N(0, (sigma R)^2) on the grid.

    What PRECAD would be if one server could be trusted with everything. No client is bounded.
    Source: PRECAD, Sec. 1 and Table 1, CDP.
    """

    name: ClassVar[str] = "central-record-dp"

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round: the sum of all, and one server's noise."""
        task, federation = self.task, self.federation
        updates = federation.gradients(t, parameters, chosen, clip=federation.record_clip(), bound=math.inf)
        updates = federation.attacked(t, parameters, updates, bound=math.inf, step=self.step_at(t))
        accepted = federation.uploads(updates, is_clipped=False)
        total = np.zeros(task.dim, dtype=np.int64)
        for upload in accepted.values():
            total += upload
        total += federation.randomness.noise(t, "server", task.noise_std_on_grid, task.dim)
        return RoundOutcome(self._updated(parameters, total), tuple(accepted))

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return guarantees as PRECAD's against one server: one draw of N(0, (sigma R)^2) hides a record."""
        trusted = "the server is trusted: it sees every update, and who takes part"
        return [self._of_one_record(participation, against="any other clients", note=trusted)]
