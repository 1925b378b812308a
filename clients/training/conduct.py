"""The seam at which a client may deviate: what it does with its records, its update, its integers and its upload.

    on_deal -> records -> on_records -> on_invitation -> Algorithm 2 -> on_trained (on_update) -> encode -> share
        -> on_upload -> upload, after delay_s

In an evaluation, `encode_evaluation` takes the place of training and encoding. In mode `proved` what is shared is
proved, too: `prove`. Upload and proof leave by `on_message`.

A client process gets one conduct for each of its clients from whoever starts it (`precad.deploy.conducts`). The code
of the client calls these methods and never asks which conduct it has. Attacks are the other conducts; they are in
`precad.clients.attacks`, which no module of the client imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from precad.clients.encoding import encode_update
from precad.clients.records.records import Records
from precad.clients.submission import ProvedMessage, Submission
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

if TYPE_CHECKING:
    from precad.mpc.local.step import Rows
    from precad.mpc.proved.field import FieldArray
    from precad.mpc.proved.prover import ProofMasks
    from precad.mpc.proved.sizes import ProofSizes

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trained:
    """Hold what a client has when a round's update is made, and not yet encoded."""

    parameters: NDArray[np.float32]
    """theta_t (d,)."""
    records: Records
    """Those that it trains on."""
    update: Vector
    """The round's update (d,), which has norm <= C."""
    descend: Callable[[int, float], Vector]
    """(steps, rate) to parameters (d,): steps of gradient descent from theta_t on samples of `records`, without
    clipping or noise. Raises: ArgumentError, NonFiniteGradientError."""
    gradient: Callable[[Vector, Records], Vector]
    """Parameters (d,) and records to the gradient of their mean loss there, without clipping or noise. Raises:
    NonFiniteGradientError."""
    clipped_sum: Callable[[Records], Vector]
    """Records to the sum of their clipped gradients at theta_t, over the model's parameters, as rounds compute it.
    Raises ClientError."""


class Conduct:
    """Follow the protocol at every step. A subclass overrides the steps at which it deviates.

    Methods leave their argument as it was.
    """

    __slots__ = ()

    @property
    def follows_protocol(self) -> bool:
        """Say whether the client computes as the protocol says and adds its noise, whatever its records are."""
        return True

    def on_deal(self, own: Records, others: Callable[[], Sequence[Records]]) -> Records:
        """Return what the client holds, where one data set is dealt to all clients: `others` are the other parts."""
        return own

    def on_records(self, records: Records) -> Records:
        """Return what the client trains on."""
        return records

    def on_invitation(self, n_committed: int, model_digest: bytes) -> None:
        """Hear that the client is in a round, after so many that are committed, before it trains."""

    def on_trained(self, trained: Trained) -> Vector:
        """Return what goes into the encoding (d,). Raises ClientError; then nothing is uploaded."""
        return self.on_update(trained.update)

    def on_update(self, update: Vector) -> Vector:
        """Return what goes into the encoding, given the round's update (d,), which has norm <= C."""
        return update

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Return the integers that are shared (d,), given what `on_update` returned. Raises ArgumentError, MpcError."""
        return encode_update(update, task)

    def encode_evaluation(self, total: Vector, task: Task) -> RingArray:
        """Return the integers that are shared in an evaluation (3,), given the sum over held-out records, within C.

        task: the evaluation's own (`Task.evaluation_round`). Raises ArgumentError, MpcError.
        """
        return encode_update(total, task)

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """Return what is uploaded to that server, 0 for A and 1 for B, given the round's submission."""
        return submission

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """Return what is sent to the slot's holder, in mode `proved`, given the round's upload or its proof."""
        return message

    def prove(self, encoded: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
        """Return the proof, in mode `proved`, that the shared integers (d,) are within the bound.

        Raises OutsideWindowError; then no proof leaves, and none is made again.
        """
        from precad.mpc.proved.prover import prove

        return prove(encoded, rows, sizes, masks)

    def close(self) -> None:
        """Give back files, once nothing more is uploaded."""

    def delay_s(self, submit_timeout_s: float) -> float:
        """Return the seconds to wait before the upload; a round waits for submit_timeout_s."""
        return 0.0


@final
class Honest(Conduct):
    """Follow Algorithm 2 and the protocol."""

    __slots__ = ()
