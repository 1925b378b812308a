"""Mode `proved` on vectors of your own: both servers' program from the lock to the accepted sum, and every proof.

Both parties are threads that share nothing but a channel. A vector that is too long is proved as a deviating
client does it. Where a number does not fit its bits, the low bits are proved. A simulation's servers are these, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precad.mpc import joint_coin
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.locking import lock_list
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import field
from precad.mpc.proved import validation as proved_validation
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.client import OpenUpload, make_upload
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.prover import prove_low_bits
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding, holder_of, relay_of
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party


@dataclass(frozen=True, slots=True, eq=False)
class ProvedRound:
    """Hold the verdicts and costs of a round without noise."""

    verdicts: dict[str, bool]
    """By client. Who is silent, as an honest client is with probability 2^-40, is not valid."""
    total: RingArray
    """The sum of the valid vectors, (d,)."""
    exchanges: int
    """Messages per direction."""
    bytes_per_direction: int


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """One client's upload, at its client until it has proved it."""

    client: str
    seed: Seed
    payload: bytes
    binding: Binding
    open: OpenUpload

    def locked(self, slot: int, party: Party) -> LockedUpload:
        """Return what a server has of it: the payload as its holder, else the seed."""
        held = PackedShare(HeldBytes(self.payload), self.binding.dim)
        return LockedUpload(self.client, self.binding.digest(), held if holder_of(slot) == party else self.seed)


def proved_round(uploads: Mapping[str, RingArray], label: Label, sizes: ProofSizes) -> ProvedRound:
    """Share every upload, lock, prove, validate, and add up what is valid. Randomness is fresh.

    uploads: integers of magnitudes up to (p - 1) / 2, (d,), which are made read-only. label: of the round.
    """
    sent = {slot: _share(label, slot, client, x, sizes) for slot, (client, x) in enumerate(uploads.items())}
    bindings = {upload.client: upload.binding.digest() for upload in sent.values()}

    def lock(channel: MemoryChannel) -> tuple[Seed, int, int]:
        locked = lock_list(bindings, label, tuple(uploads), channel)
        seed = joint_coin.reveal(locked.coin, locked.peers_commitment, locked.transcript, channel)
        return seed, channel.rounds, channel.bytes_sent

    challenges = run_pair(lock)
    checks = tuple(_check(label, party, challenges[party][0], sent, sizes) for party in (0, 1))
    _prove(sent, (challenges[0][0], challenges[1][0]), checks)

    def validate(channel: MemoryChannel) -> tuple[Mapping[int, bool], FieldArray, int, int]:
        checked = proved_validation.validate(checks[channel.party], list(sent), channel)
        return checked.verdicts, checked.share_sum, channel.rounds, channel.bytes_sent

    (verdicts, of_a, rounds, n_bytes), (_, of_b, _, _) = run_pair(validate)
    return ProvedRound(
        verdicts={upload.client: verdicts.get(slot, False) for slot, upload in sent.items()},
        total=field.to_integers(field.add(of_a, of_b)),
        exchanges=challenges[0][1] + rounds,
        bytes_per_direction=challenges[0][2] + n_bytes,
    )


def _share(label: Label, slot: int, client: str, x: RingArray, sizes: ProofSizes) -> _Sent:
    """Make the upload under a seed that its seeded server would give."""
    of_slot, seed = Label(label.task, label.round, str(slot)), Seed.random()
    blank = Binding(
        task=label.task,
        round=label.round,
        client=client,
        config_digest=bytes(32),
        model_digest=bytes(32),
        dim=sizes.dim,
        payload_digest=b"",
    )
    binding = make_upload(x, blank, seed, of_slot).binding
    assert isinstance(binding, Binding)  # `make_upload` fills in ours
    is_open = OpenUpload(x, sizes, binding, seed, slot, prove_with=prove_low_bits)
    return _Sent(client, seed, b"".join(payload_pieces(x, seed, of_slot)), binding, is_open)


def _check(label: Label, party: Party, challenge: Seed, sent: Mapping[int, _Sent], sizes: ProofSizes) -> ProofCheck:
    return ProofCheck(party, label, sizes, challenge, {slot: u.locked(slot, party) for slot, u in sent.items()})


def _prove(sent: Mapping[int, _Sent], challenges: tuple[Seed, Seed], checks: tuple[ProofCheck, ...]) -> None:
    """Let every client answer the challenge that both servers send."""
    for slot, upload in sent.items():
        proof = [upload.open.hear(party, challenges[party].reveal()) for party in (0, 1)][-1]
        if proof is not None:
            holder = holder_of(slot)
            checks[holder].take_proof(slot, *proof)
            checks[1 - holder].take_relay(slot, relay_of(proof[0]))
