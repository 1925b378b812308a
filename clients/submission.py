"""Algorithm 2, line 8: from an encoded update to what each server receives.

mask, or split -> bytes for A, bytes for B, and the binding that ties them together

In the `masked` form B gets no call: its statement travels with the upload to A.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precad.clients.errors import ProtocolError
from precad.mpc import ring, sharing, upload_binding
from precad.mpc.parameters import Mode
from precad.mpc.prg import SEED_BYTES, SYSTEM_BYTES, Label, RandomBytes, Seed
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import DIGEST_BYTES, mask_seed_digest
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.task.evaluation import is_due
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS

if TYPE_CHECKING:
    from precad.mpc.proved import submission as proved


@dataclass(frozen=True, slots=True, eq=False)
class ProvedMessage:
    """Hold an upload or a proof of mode `proved`, as it leaves the client for the holder of its slot."""

    header: proved.StatedBinding
    """Its binding says which of the two it is."""
    pieces: Callable[[], Iterator[bytes]] = field(repr=False)
    """Makes the payload, the same bytes whenever it is called."""


@dataclass(frozen=True, slots=True)
class RoundInvitation:
    """Hold what both servers told a chosen client, once it is known that both told the same."""

    task_id: str
    round: int
    slot: int
    model_digest: bytes
    mask_seeds: tuple[Seed, Seed] | None
    """(from A, from B) in the `masked` form."""
    n_committed: int = 0
    """Rounds that both servers have committed."""


def round_task(from_a: aggregator_pb2.Invitation, from_b: aggregator_pb2.Invitation, task: Task) -> Task:
    """Return the parameters of the round that both servers invite to: the task's, or those of an evaluation.

    Raises ProtocolError where they differ in what the round is, and where no such round follows as many as they say
    were committed. One server alone cannot have an update taken for an evaluation, or the other way round.
    """
    if from_a.evaluation != from_b.evaluation:
        raise ProtocolError("the servers' invitations differ in evaluation")
    n_committed, of_round = from_a.n_committed, task.evaluation_round
    if not from_a.evaluation:
        return task
    if of_round is None or n_committed > task.rounds or not is_due(task.evaluation_every, n_committed):
        raise ProtocolError(f"evaluation: expected none after {n_committed} committed rounds, the servers ask for one")
    return of_round


def agree(from_a: aggregator_pb2.Invitation, from_b: aggregator_pb2.Invitation, task: Task) -> RoundInvitation:
    """Return the round that both invitations mean. Raises ProtocolError when they, or our own task, say different
    things.

    task: the round's parameters (`round_task`).

    Two servers that show a client two models, or two dimensions, could learn from the difference. One server alone
    cannot say that a round was committed, and so have more uploads for one model. Nor can it hand out another mask seed
    than it was dealt, and so have a linear function of the update added to the norm.
    """
    for name in ("task", "round", "slot", "dim", "model_digest", "n_committed"):
        if getattr(from_a, name) != getattr(from_b, name):
            raise ProtocolError(f"the servers' invitations differ in {name}")
    if from_a.dim != task.dim:
        raise ProtocolError(f"dim: expected {task.dim}, the servers say {from_a.dim}")
    require_round_left(from_a, task)
    seeds = None if task.wire_mode is Mode.SHARES else (_mask_seed(0, from_a, from_b), _mask_seed(1, from_b, from_a))
    return RoundInvitation(from_a.task, from_a.round, from_a.slot, from_a.model_digest, seeds, from_a.n_committed)


def require_round_left(invitation: aggregator_pb2.Invitation, task: Task) -> None:
    """Refuse a round of the training once all are committed, as both servers say. Raises ProtocolError."""
    if not invitation.evaluation and invitation.n_committed >= task.rounds:
        raise ProtocolError(f"n_committed: expected fewer than {task.rounds}, the servers say {invitation.n_committed}")


def _mask_seed(server: int, invitation: aggregator_pb2.Invitation, peers: aggregator_pb2.Invitation) -> Seed:
    """Return the seed from this server's invitation. Raise ProtocolError if the peer was told another one's digest."""
    own, other = AGGREGATORS[server], AGGREGATORS[1 - server]
    if len(invitation.mask_seed) != SEED_BYTES:
        raise ProtocolError(f"mask_seed: expected {SEED_BYTES} bytes from {own}, found {len(invitation.mask_seed)}")
    if len(peers.peer_mask_seed_digest) != DIGEST_BYTES:
        found = len(peers.peer_mask_seed_digest)
        raise ProtocolError(f"peer_mask_seed_digest: expected {DIGEST_BYTES} bytes from {other}, found {found}")
    seed = Seed(invitation.mask_seed)
    if not hmac.compare_digest(mask_seed_digest(seed), peers.peer_mask_seed_digest):
        raise ProtocolError(
            f"mask_seed: expected from {own} the seed that {other} says was dealt to it, found another one"
        )
    return seed


@dataclass(frozen=True, slots=True)
class Submission:
    """Hold what one client uploads in one round."""

    binding: common_pb2.Binding
    payloads: tuple[bytes, bytes] = field(repr=False)
    """(to A, to B)."""
    statement: bytes = field(default=b"", repr=False)
    """To B by way of A, in the `masked` form (`upload_binding.statement`)."""
    salt: bytes = field(default=b"", repr=False)
    """To B alone, in the `shares` form (`upload_binding.salted_digest`)."""

    def salt_to(self, server: int) -> bytes:
        """Return nothing for A, which must not have it."""
        return self.salt if server == 1 else b""

    @property
    def servers(self) -> tuple[int, ...]:
        """Return the servers to call, in order: A alone in the `masked` form, B and then A in the `shares` form."""
        return (0,) if self.statement else (1, 0)


def make_submission(
    encoded: RingArray,
    invitation: RoundInvitation,
    *,
    task: Task,
    client: str,
    random_bytes: RandomBytes = SYSTEM_BYTES,
) -> Submission:
    """Return the two payloads and their binding. Each mask seed serves one call: a second vector under it would leak
    the difference of the two."""
    label = Label(invitation.task_id, invitation.round, str(invitation.slot))
    bind = functools.partial(
        convert.binding,
        task=task,
        task_id=invitation.task_id,
        round=invitation.round,
        client=client,
        model_digest=invitation.model_digest,
    )
    if invitation.mask_seeds is None:
        seed, share_b = sharing.split(encoded, label, random_bytes)
        to_a, to_b, salt = seed.reveal(), ring.to_bytes(share_b), random_bytes(upload_binding.SALT_BYTES)
        digests = (convert.sha256(to_a), upload_binding.salted_digest(salt, convert.sha256(to_b)))
        return Submission(bind(digests=digests), (to_a, to_b), salt=salt)
    masked = ring.to_bytes(sharing.mask(encoded, invitation.mask_seeds, label))
    binding = bind(digests=(convert.sha256(masked), convert.sha256(b"")))
    statement = upload_binding.statement(invitation.mask_seeds[1], label, convert.binding_digest(binding))
    return Submission(binding, (masked, b""), statement=statement)
