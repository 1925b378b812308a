"""PRECAD: two servers, shares, a norm check, joint noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from precad.clients.errors import ArgumentError
from precad.lab.simulation.algorithms.algorithm import Parameters
from precad.lab.simulation.algorithms.deployment import Deployed
from precad.lab.simulation.two_servers import CleartextServers, TwoServers, mpc_servers
from precad.mpc.ring import RingArray


class Precad(Deployed):
    """The round of a deployment, integer for integer.

    `validation` off: the servers check nothing. `client_clipping` off as well: clients do not project their update,
    the paper's faster version with only privacy (Sec. 7). Source: PRECAD, Algorithms 1 and 2.
    """

    name: ClassVar[str] = "precad"
    is_of_any_task: ClassVar[bool] = False

    def _make_servers(self) -> TwoServers:
        settings = self.settings
        if settings.validation and not settings.client_clipping:
            raise ArgumentError("simulation.validation: expected false where clients do not clip, found true")
        if self.task.epsilon_budget_client is not None and not settings.client_clipping:
            raise ArgumentError(
                "task.epsilon_budget_client: expected none where clients do not clip, which bounds nothing, "
                f"found {self.task.epsilon_budget_client}"
            )
        if settings.servers == "mpc" and not settings.validation:
            raise ArgumentError("simulation.servers: expected 'cleartext' without validation, found 'mpc'")
        if settings.servers == "mpc":
            return mpc_servers(self.task)
        return CleartextServers(self.task, has_validation=settings.validation and self.task.checks_norms)

    def _uploads(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> dict[str, RingArray]:
        federation, task, settings = self.federation, self.task, self.settings
        bound = task.client_clip if settings.client_clipping else math.inf
        updates = federation.gradients(t, parameters, chosen, clip=federation.record_clip(), bound=bound)
        enforced = task.enforced_bound if settings.validation else math.inf
        updates = federation.attacked(t, parameters, updates, bound=enforced, step=self.step_at(t))
        return federation.uploads(updates, is_clipped=settings.client_clipping)
