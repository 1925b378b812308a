"""Algorithm 1, lines 4 and 5, in one process: which uploads are short enough, and the sum of those.

    cleartext   the exact integer norm, computed in the clear
    mpc         both servers' real program, two threads over an in-memory channel, with a dealer's tuples; in mode
                `proved` with the clients' real proofs instead

The protocol's theorem says that both accept the same uploads but for a chance of 2^-64 each. The sums are equal as
integers (tests/integration/test_reference_round.py, tests/lab/simulation/test_simulation.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.mpc import fixed_point, joint_coin, ring, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import top_bits
from precad.mpc.gates import make_gate
from precad.mpc.parameters import Mode
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import field, steps
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.client import OpenUpload, make_upload
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces
from precad.mpc.proved.submission import Binding, holder_of, relay_of
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.task.task import Task

_PROVES_ANYTHING: Final = Attack()
"""Proves what is short enough as an honest client does, and keeps the low bits of what is not."""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """Hold what both servers know before the noise."""

    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    total: RingArray
    """The sum of the accepted uploads, modulo 2^64, (d,)."""


class TwoServers(Protocol):
    """One way to check and add up a round's uploads."""

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray]) -> Checked:
        """Check and sum the uploads of round t. Clients in the order of `uploads`."""


class CleartextServers:
    """The round in the clear."""

    def __init__(self, task: Task, *, has_validation: bool = True) -> None:
        self._threshold = task.norm_bound.threshold if has_validation else None
        self._dim = task.dim

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray]) -> Checked:
        """Check and sum exactly, whatever the uploads are."""
        accepted = [client for client, upload in uploads.items() if self._fits(upload)]
        total = np.zeros(self._dim, dtype=np.int64)
        for client in accepted:
            total += uploads[client]
        return Checked(tuple(accepted), tuple(c for c in uploads if c not in set(accepted)), total)

    def _fits(self, upload: RingArray) -> bool:
        return self._threshold is None or fixed_point.exact_squared_norm(upload) <= self._threshold


class MpcServers:
    """Both servers' validation, as they run it. The randomness of the MPC is fresh: no result depends on it."""

    def __init__(self, task: Task) -> None:
        """Raises GateUnavailableError."""
        self._task, self._gate = task, make_gate(task.gate)

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray]) -> Checked:
        """Mask or split every upload, lock, validate, and reconstruct the sum of the accepted."""
        task, clients = self._task, tuple(uploads)
        blocks = top_bits.blocks(self._gate, len(clients), task.norm_bound.low_bits)
        shape = BatchShape("simulation", t, clients, task.dim, blocks)
        dealt = deal(shape)
        tuples = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
        held: tuple[dict[str, RingArray], dict[str, RingArray]] = ({}, {})
        for client, upload in uploads.items():
            label = shape.label(client)
            if task.wire_mode is Mode.MASKED:
                seeds = (tuples[0].hand_out_mask_seed(client), tuples[1].hand_out_mask_seed(client))
                held[0][client] = held[1][client] = sharing.mask(upload, seeds, label)
            else:
                seed, held[1][client] = sharing.split(upload, label)
                held[0][client] = sharing.expand_share(seed, label, task.dim)
        bindings = {c: hashlib.sha256(ring.to_bytes(held[0][c]) + ring.to_bytes(held[1][c])).digest() for c in clients}

        def server(channel: MemoryChannel) -> validation.Validated:
            own, mine = held[channel.party], tuples[channel.party]
            locked = validation.lock(bindings, shape, channel)
            reveal = validation.reveal if task.wire_mode is Mode.MASKED else validation.reveal_and_open
            return validation.validate(reveal(locked, own, mine, channel), mine, task.norm_bound, self._gate, channel)

        a, b = run_pair(server)
        return Checked(a.accepted, a.rejected, sharing.reconstruct(a.accepted_share_sum, b.accepted_share_sum))


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """One client's upload in mode `proved`, at its client until it has proved it."""

    client: str
    seed: Seed
    payload: bytes
    binding: Binding
    open: OpenUpload

    def locked(self, slot: int, party: Party) -> LockedUpload:
        """Return what a server has of it: the payload as its holder, else the seed."""
        held = PackedShare(HeldBytes(self.payload), self.binding.dim)
        return LockedUpload(self.client, self.binding.digest(), held if holder_of(slot) == party else self.seed)


class ProvedServers:
    """Both servers of mode `proved`, from the lock to the accepted sum, and the clients' proofs."""

    def __init__(self, task: Task) -> None:
        self._task, self._sizes = task, task.proof_sizes

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray]) -> Checked:
        """Share every upload, lock, prove, validate, and reconstruct the sum of the accepted."""
        label = Label("simulation", t)
        sent = {slot: self._share(label, slot, client, x) for slot, (client, x) in enumerate(uploads.items())}
        bindings = {upload.client: upload.binding.digest() for upload in sent.values()}

        def lock(channel: MemoryChannel) -> Seed:
            locked = validation.lock_list(bindings, label, tuple(uploads), channel)
            return joint_coin.reveal(locked.coin, locked.peers_commitment, locked.transcript, channel)

        challenges = run_pair(lock)
        checks = tuple(self._check(label, party, challenges[party], sent) for party in (0, 1))
        self._prove(sent, challenges, checks)

        def validate(channel: MemoryChannel) -> tuple[dict[int, bool], FieldArray]:
            return steps.validate(checks[channel.party], label, self._sizes, list(sent), channel)

        (verdicts, of_a), (_, of_b) = run_pair(validate)
        accepted = tuple(upload.client for slot, upload in sent.items() if verdicts.get(slot))
        rejected = tuple(client for client in uploads if client not in set(accepted))
        return Checked(accepted, rejected, field.to_integers(field.add(of_a, of_b)))

    def _share(self, label: Label, slot: int, client: str, x: RingArray) -> _Sent:
        """Make the upload of integers (d,), under a seed that its seeded server would give."""
        of_slot, seed = Label(label.task, label.round, str(slot)), Seed.random()
        blank = Binding(
            task=label.task,
            round=label.round,
            client=client,
            config_digest=self._task.digest(),
            model_digest=bytes(32),
            dim=self._task.dim,
            payload_digest=b"",
        )
        binding = make_upload(x, blank, seed, of_slot).binding
        assert isinstance(binding, Binding)  # `make_upload` fills in ours
        is_open = OpenUpload(x, self._sizes, binding, seed, slot, prove_with=_PROVES_ANYTHING.prove)
        return _Sent(client, seed, b"".join(payload_pieces(x, seed, of_slot)), binding, is_open)

    def _check(self, label: Label, party: Party, challenge: Seed, sent: Mapping[int, _Sent]) -> ProofCheck:
        locked = {slot: upload.locked(slot, party) for slot, upload in sent.items()}
        return ProofCheck(party, label, self._sizes, challenge, locked)

    @staticmethod
    def _prove(sent: Mapping[int, _Sent], challenges: tuple[Seed, Seed], checks: tuple[ProofCheck, ...]) -> None:
        """Let every client answer the challenge of both servers; one with a row outside its window is silent."""
        for slot, upload in sent.items():
            proof = [upload.open.hear(party, challenges[party].reveal()) for party in (0, 1)][-1]
            if proof is not None:
                holder = holder_of(slot)
                checks[holder].take_proof(slot, *proof)
                checks[1 - holder].take_relay(slot, relay_of(proof[0]))


def mpc_servers(task: Task) -> TwoServers:
    """Return both servers' real program, of the task's mode. Raises GateUnavailableError."""
    return ProvedServers(task) if task.is_proved else MpcServers(task)
