"""A round of mode `proved` at its client: one upload to the slot's holder, then one proof, for both servers' challenge.

The rules are those of `precad.mpc.proved.client`: C0 is in `agree`, and C1, C2 and C4 are in `OpenUpload`. For C3,
masks and salts come from the operating system, and `precad.clients.upload_limit` counts. Nothing of an upload outlives
its round.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from precad.clients.errors import ProtocolError
from precad.clients.submission import ProvedMessage, require_round_left
from precad.clients.training.conduct import Conduct
from precad.mpc.errors import ProofRefusedError, raised_as
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import client as rules
from precad.mpc.proved.client import Invitation, OpenUpload, make_upload
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.mpc.proved.shares import payload_pieces
from precad.mpc.proved.submission import Binding, ProofBinding, holder_of
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.protos.messages import convert, proved
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.task import Task

MOST_HELD_BYTES: Final = 1 << 24
"""A payload of at most so many bytes is kept for its round. A longer one is expanded twice."""


def _value_of(message: aggregator_pb2.Invitation) -> Invitation:
    return Invitation(
        task=message.task,
        round=message.round,
        slot=message.slot,
        dim=message.dim,
        model_digest=message.model_digest,
        n_committed=message.n_committed,
        share_seed=message.mask_seed,
    )


def agree(from_a: aggregator_pb2.Invitation, from_b: aggregator_pb2.Invitation, task: Task) -> tuple[Invitation, Seed]:
    """Return what both servers say of a round, and the share seed, which the seeded server alone gives (C0).

    task: the round's parameters (`round_task`).

    Raises ProtocolError when they, or our own task, say different things; nothing is sent in the round then.
    """
    both = (_value_of(from_a), _value_of(from_b))
    with raised_as(ProtocolError, ProofRefusedError):
        seed = rules.agree(both, task.dim)
    require_round_left(from_a, task)
    if from_a.slot >= len(task.clients):
        raise ProtocolError(f"slot: expected fewer than {len(task.clients)}, the servers say {from_a.slot}")
    return both[0], seed


def _payload_of(encoded: RingArray, seed: Seed, label: Label) -> Callable[[], Iterable[bytes]]:
    """Return what gives the payload in tiles whenever it is asked: kept where it is short, else expanded again."""
    expand = functools.partial(payload_pieces, encoded, seed, label)
    if ELEMENT_BYTES * encoded.size > MOST_HELD_BYTES:
        return expand
    held = tuple(expand())
    return lambda: held


class RoundUpload:
    """One client's upload, and its proof, in one round."""

    def __init__(
        self, encoded: RingArray, invitation: Invitation, seed: Seed, *, task: Task, client: str, conduct: Conduct
    ) -> None:
        """Share the vector, (d,). Nothing is sent yet."""
        self.task, self.round = invitation.task, invitation.round
        self.holder: Party = holder_of(invitation.slot)
        self._conduct = conduct
        label = Label(invitation.task, invitation.round, str(invitation.slot))
        blank = Binding(
            task=invitation.task,
            round=invitation.round,
            client=client,
            config_digest=task.digest(),
            model_digest=invitation.model_digest,
            dim=task.dim,
            payload_digest=b"",
        )
        payload = _payload_of(encoded, seed, label)
        submission = make_upload(encoded, blank, seed, label, pieces=payload())
        binding = submission.binding
        assert isinstance(binding, Binding)  # `make_upload` fills in ours
        self._binding = binding
        self._upload = conduct.on_message(ProvedMessage(submission, lambda: convert.joined_pieces(payload())))
        self._open = OpenUpload(encoded, task.proof_sizes, binding, seed, invitation.slot, prove_with=conduct.prove)

    async def parts(self) -> AsyncIterator[aggregator_pb2.SubmitPart]:
        """Yield the messages to the holder, the same bytes whenever they are asked for (C1)."""
        header, is_first = self._upload.header, True
        assert isinstance(header.binding, Binding)  # no conduct sends a proof here
        binding = proved.binding_message(header.binding)
        for piece in self._upload.pieces():
            chunk = convert.chunk(piece)
            if is_first:
                statement, salt = header.statement, header.salt
                yield aggregator_pb2.SubmitPart(binding=binding, statement=statement, salt=salt, chunk=chunk)
            else:
                yield aggregator_pb2.SubmitPart(chunk=chunk)
            is_first = False

    def prepare(self) -> None:
        """Compute what the proof needs no challenge for. `prove` must not run meanwhile."""
        self._open.prepare()

    def hears(self, server: Party, challenge: bytes) -> bool:
        """Take one server's challenge. Return True once: when both have sent the same one (C2). `prove` is then due."""
        return self._open.agrees(server, challenge)

    def prove(self) -> ProvedMessage | None:
        """Return the proof for the challenge that both servers sent, once; None where none may leave."""
        if (proof := self._open.answer()) is None:
            return None
        submission, payload = proof
        return self._conduct.on_message(ProvedMessage(submission, lambda: convert.growing_pieces(payload)))


async def proof_parts(proof: ProvedMessage) -> AsyncIterator[aggregator_pb2.ProvePart]:
    """Yield the messages of a proof, the same bytes whenever they are asked for (C1)."""
    header, (first, *others) = proof.header, proof.pieces()
    assert isinstance(header.binding, ProofBinding)  # no conduct sends an upload here
    yield aggregator_pb2.ProvePart(
        binding=proved.proof_binding_message(header.binding),
        statement=header.statement,
        salt=header.salt,
        chunk=convert.chunk(first),
    )
    for piece in others:
        yield aggregator_pb2.ProvePart(chunk=convert.chunk(piece))
