"""Run an attack in a client process, with what it knows there.

A simulation hands an attack everything that there is (`Knowledge`). In a deployment it has its client's own records and
update, the task, and what other attackers tell it (`precad.clients.attacks.shared_folder`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from precad.clients.attacks.attack import Attack, Knowledge, Vector, crafts, hoards
from precad.clients.attacks.model_space import ModelSpace
from precad.clients.attacks.named import raising
from precad.clients.attacks.shared_folder import Colluders
from precad.clients.errors import NonFiniteGradientError, NoVictimError, ProtocolError
from precad.clients.own_code import Unspoken, line_of
from precad.clients.records.records import Records, joined
from precad.clients.submission import ProvedMessage, Submission
from precad.clients.training.conduct import Conduct, Trained
from precad.mpc.errors import raised_as
from precad.mpc.local.step import Rows
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

_KEY_DIGITS: Final = 16


@dataclass(slots=True, eq=False)
class InDeployment(Conduct):
    """An attack of a client process, whose upload it crafts of what it knows there."""

    attack: Attack
    client: str
    task: Task
    n_attackers: int
    """Malicious clients of the task, as far as this one knows."""
    colluders: Colluders | None = None
    _n_committed: int = field(default=0, init=False)
    _key: str = field(default="", init=False)

    @property
    def follows_protocol(self) -> bool:
        """See `Conduct`."""
        return self.attack.follows_protocol

    def on_deal(self, own: Records, others: Callable[[], Sequence[Records]]) -> Records:
        """Add what it hoards of the other clients' records."""
        if not hoards(self.attack):
            return own
        hoarded = [records.take(np.flatnonzero(self.attack.hoarded(records))) for records in others()]
        return joined([own, *(taken for taken in hoarded if len(taken))])

    def on_records(self, records: Records) -> Records:
        """See `Conduct`. Raises ExtensionError for an attack of the user's own that raises."""
        with raising("on_records", type(self.attack).__name__):
            return self.attack.on_records(records)

    def on_invitation(self, n_committed: int, model_digest: bytes) -> None:
        """Remember which round it is, and tell the colluders."""
        self._n_committed = n_committed
        if self.colluders is not None:
            name = f"{self.task.digest().hex()}/{n_committed}/{model_digest.hex()}"
            self._key = hashlib.sha256(name.encode()).hexdigest()[:_KEY_DIGITS]
            self.colluders.announce(self._key)

    def close(self) -> None:
        """See `Conduct`."""
        self.attack.close()

    def on_update(self, update: Vector) -> Vector:
        """See `Conduct`."""
        return self.attack.on_update(update)

    def on_trained(self, trained: Trained) -> Vector:
        """Return what the attack crafts. Raises ProtocolError where it has nothing to upload in this round."""
        if not crafts(self.attack):
            with self._silent_if_it_raises():
                return self.attack.on_update(trained.update)
        with self._silent_if_it_raises():
            return self._crafted(trained)

    def _crafted(self, trained: Trained) -> Vector:
        with raised_as(
            ProtocolError, (NoVictimError, NonFiniteGradientError), "the attacker stays silent in this round"
        ):
            space = ModelSpace.of(self.task, trained.parameters, self.task.enforced_bound)
            with np.errstate(over="ignore", invalid="ignore"):
                crafted = space.upload(self.attack.craft(self._known(trained, space)))
        if not np.isfinite(crafted).all():
            raise ProtocolError("the attacker stays silent in this round: what it crafted is not finite")
        return crafted

    def _silent_if_it_raises(self) -> Unspoken:
        """Leave out the round, and not the process, which may be other clients', too. Raises ProtocolError."""

        def silent(error: BaseException) -> ProtocolError:
            what = f"{type(self.attack).__name__} raises {type(error).__name__}{line_of(error)}"
            return ProtocolError(f"the attacker stays silent in this round: {what}")

        return Unspoken(silent)

    def _known(self, trained: Trained, space: ModelSpace) -> Knowledge:
        """Return what there is to know, of the round that it was invited to."""
        task = self.task
        n_clients = max(1, round(task.expected_clients))
        if self.colluders is None:
            own, n_attackers = {self.client: trained.update}, max(1, round(task.client_rate * self.n_attackers))
        else:
            own = self.colluders.gather(self._key, trained.update)
            n_attackers = len(own)
        return Knowledge(
            parameters=trained.parameters[: task.n_parameters],
            records=trained.records,
            update=space.updates(trained.update),
            honest=np.empty((0, task.n_parameters)),
            own=space.updates(np.array(list(own.values()))),
            n_attackers=n_attackers,
            n_clients=max(n_clients, n_attackers),
            bound=space.bound,
            step=task.rate(task.learning_rate, self._n_committed) / task.divisor,
            train=trained.descend,
            gradient=trained.gradient,
            project=space.project,
            random=np.random.default_rng(),
        )

    def encode(self, update: Vector, task: Task) -> RingArray:
        """See `Conduct`."""
        with self._silent_if_it_raises():
            return self.attack.encode(update, task)

    def encode_evaluation(self, total: Vector, task: Task) -> RingArray:
        """See `Conduct`."""
        with self._silent_if_it_raises():
            return self.attack.encode_evaluation(total, task)

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Conduct`."""
        with self._silent_if_it_raises():
            return self.attack.on_upload(submission, server)

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct`."""
        with self._silent_if_it_raises():
            return self.attack.on_message(message)

    def prove(self, encoded: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
        """See `Conduct`."""
        with self._silent_if_it_raises():
            return self.attack.prove(encoded, rows, sizes, masks)

    def delay_s(self, submit_timeout_s: float) -> float:
        """See `Conduct`."""
        return self.attack.delay_s(submit_timeout_s)


@dataclass(frozen=True, slots=True)
class Robbed(Conduct):
    """Follow the protocol without the records that attackers hoard, where one data set is dealt to all clients."""

    hoarders: Sequence[Attack]

    def on_deal(self, own: Records, others: Callable[[], Sequence[Records]]) -> Records:
        """Return what nobody hoards."""
        is_hoarded = np.any([np.zeros(len(own), dtype=np.bool_), *(a.hoarded(own) for a in self.hoarders)], axis=0)
        return own.take(np.flatnonzero(~is_hoarded)) if is_hoarded.any() else own


def hoarders_of(attacks: Mapping[str, Attack]) -> list[Attack]:
    """Return the attacks that hoard records."""
    return [attack for attack in attacks.values() if hoards(attack)]
