"""Attackers of mode `proved`: an honest upload with another proof, or bytes that stand for no element.

The servers reject the first kind, and refuse the others by name. None changes the sum of the others' updates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.clients.attacks.uploads import Forger, flipped, with_bytes
from precad.clients.checks import require_finite
from precad.clients.submission import ProvedMessage
from precad.mpc.local.step import Rows
from precad.mpc.proved.field import ELEMENT_BYTES, FieldArray
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

_NO_ELEMENT: Final = b"\xff" * ELEMENT_BYTES
"""2^56 - 1, which is not below p."""


@dataclass(frozen=True, slots=True)
class FalseProof(Forger):
    """Uploads `gamma` times its update, and proves the norm of a vector that is short enough: zero.

    The openings are of the shares that the servers hold, so that both identities fail but for a chance of 2^-64.
    Source: ours; what the rows and the points are drawn for (docs/explanation/proved.md).
    """

    name: ClassVar[str] = "false-proof"
    needs_proofs: ClassVar[bool] = True

    gamma: float = 100.0

    def __post_init__(self) -> None:
        require_finite("gamma", self.gamma)

    def encode(self, update: np.ndarray, task: Task) -> RingArray:
        """See `Attack.encode`."""
        return Attack.encode(self, self.gamma * update, task)

    def prove(self, encoded: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
        """See `Attack.prove`."""
        return Attack.prove(self, np.zeros_like(encoded), rows, sizes, masks)


@dataclass(slots=True)
class ReplayedProof(Forger):
    """Answers the challenge, from its second proof on, with the proof before. Its upload is honest.

    The proof's binding names its upload and its round, so that the holder refuses it.
    """

    name: ClassVar[str] = "replayed-proof"
    needs_proofs: ClassVar[bool] = True

    _latest: ProvedMessage | None = field(default=None, init=False, repr=False)

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct.on_message`."""
        if isinstance(message.header.binding, Binding):
            return message
        earlier, self._latest = self._latest, message
        return earlier or message


@dataclass(frozen=True, slots=True)
class OutOfRange(Forger):
    """Uploads 2^56 - 1 as its first element, which is none, under a digest that fits."""

    name: ClassVar[str] = "out-of-range"
    needs_proofs: ClassVar[bool] = True

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct.on_message`."""

        def pieces() -> Iterator[bytes]:
            honest = message.pieces()
            return itertools.chain((_NO_ELEMENT + next(honest)[ELEMENT_BYTES:],), honest)

        return with_bytes(message, pieces)


@dataclass(frozen=True, slots=True)
class InconsistentProof(Forger):
    """Flips a bit of its proof under a binding that fits; its statement to the seeded server is about the honest one.

    The seeded server does not count it, so that neither opens its shares.
    """

    name: ClassVar[str] = "inconsistent-proof"
    needs_proofs: ClassVar[bool] = True

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct.on_message`."""
        return message if isinstance(message.header.binding, Binding) else with_bytes(message, flipped(message))
