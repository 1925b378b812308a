"""No attack: the control of an experiment, a malicious client that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.attack import Attack, Vector
from precad.clients.training.conduct import Conduct
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True)
class NoAttack(Attack):
    """Upload the honest update in its honest encoding, without noise of its own.

    A deployment has no such client: there, `none` is a client that follows the protocol.
    """

    name: ClassVar[str] = "none"

    def encode(self, update: Vector, task: Task) -> RingArray:
        """See `Conduct.encode`."""
        return Conduct.encode(self, update, task)
