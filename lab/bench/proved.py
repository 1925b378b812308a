"""Mode `proved` in the benchmarks: a round's uploads and proofs as both servers hold them, and their check.

Clients are played by both server processes from one recorded stream, as in `precad.lab.bench.workload`: each process
keeps its own side. A proof that is too long comes from a client that sends the low bits of what does not fit.

The clock of a check runs from holding every upload and proof to every verdict and this server's sum, as in the servers
(`precad.mpc.proved.validation`). Row values need the challenge alone, so servers compute them while clients prove. That
is timed apart, before the clock. Two cases: `proved`, where slots alternate between holders as in a round, and `held`,
where server A holds every slot. The latter reports what a server computes alone, the time of exchanges left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from precad.clients.attacks.attack import Attack
from precad.dp.noise import rounded_gaussian
from precad.lab.bench.errors import WrongVerdictError
from precad.lab.bench.measured import NOISE_STD, BatchRun, CountingChannel
from precad.lab.bench.workload import TASK, Case, Updates, recorded, sizes_of
from precad.mpc.local.rows import RowStreams
from precad.mpc.prg import Label, RandomBytes, Seed, expanded_bytes
from precad.mpc.proved import opening, validation
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.client import make_proof
from precad.mpc.proved.field import ELEMENT_BYTES, FieldArray
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.shares import PackedShare, payload_pieces
from precad.mpc.proved.submission import Binding, StatedBinding, holder_of, relay_of
from precad.mpc.proved.validation import Checked
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.servers.rounds.uploads import Spool

PROVED: Final = "proved"
"""The implementation of both cases, and the mode of the first."""
HELD: Final = "held"
"""The mode of the case in which A holds every slot."""


def slots_of(case: Case) -> tuple[int, ...]:
    """Return the clients' slots: one after the other, or those that A holds."""
    step = 2 if case.mode == HELD else 1
    return tuple(range(0, step * case.clients, step))


def binding_of(client: str, round: int, dim: int) -> Binding:
    """Return the binding of an upload, as long as a real one, before its digest is filled in."""
    return Binding(TASK, round, client, bytes(32), bytes(32), dim, b"")


@dataclass(frozen=True, slots=True)
class _Player:
    """One client of a batch, played from the recorded stream."""

    name: str
    slot: int
    label: Label
    seed: Seed
    binding: Binding


def prepare(case: Case, repetition: int, party: Party, spool: Spool) -> ProofCheck:
    """Make a batch's uploads and proofs, fresh for every repetition, and let this server take its side of them."""
    sizes, updates = sizes_of(case.dim), Updates(case)
    random_bytes = recorded(f"{case.implementation}/{case.mode}/{case.dim}/{case.clients}/{repetition}")
    label, challenge = Label(TASK, repetition), Seed.random(random_bytes)
    players = [_player(case, i, repetition, random_bytes) for i in range(case.clients)]
    locked = {
        player.slot: _locked(player, updates.vector(i, repetition), party, spool) for i, player in enumerate(players)
    }
    check = ProofCheck(party, label, sizes, challenge, locked)
    for i, player in enumerate(players):
        masks = ProofMasks.draw(sizes, random_bytes)
        make = Attack().prove  # of an update that is short enough, an honest proof
        words = make(updates.vector(i, repetition), RowStreams(challenge, label), sizes, masks)
        made = make_proof(words, player.binding, challenge, player.seed, player.label, random_bytes)
        _take(check, player.slot, made, party, spool)
    return check


def _player(case: Case, i: int, repetition: int, random_bytes: RandomBytes) -> _Player:
    name, slot = case.client_ids[i], slots_of(case)[i]
    label = Label(TASK, repetition, str(slot))
    return _Player(name, slot, label, Seed.random(random_bytes), binding_of(name, repetition, case.dim))


def _locked(player: _Player, x: RingArray, party: Party, spool: Spool) -> LockedUpload:
    """Return an upload as this server holds it: 7 bytes an element in the spool, or a seed."""
    digest = player.binding.digest()
    if holder_of(player.slot) != party:
        return LockedUpload(player.name, digest, player.seed)
    payload = spool.new(ELEMENT_BYTES * x.size)
    for piece in payload_pieces(x, player.seed, player.label):
        payload.write(piece)
    return LockedUpload(player.name, digest, PackedShare(payload, x.size))


def _take(check: ProofCheck, slot: int, made: tuple[StatedBinding, bytes], party: Party, spool: Spool) -> None:
    submission, payload = made
    if holder_of(slot) != party:
        check.take_relay(slot, relay_of(submission))
        return
    room = spool.new(len(payload))
    room.write(payload)
    check.take_proof(slot, submission, room)


class ProvedRun(BatchRun):
    """A check of uploads and proofs."""

    def _repeat(self, repetition: int, spool: Spool, *, is_timed: bool) -> None:
        case, channel, measured = self.case, self._channel, self.measured
        check = prepare(case, repetition, channel.party, spool)
        channel.exchange("barrier", b"")
        rows_s = _seconds_of_rows(check)
        checked, seconds = self._check(lambda: validation.validate(check, slots_of(case), channel))
        _require_verdicts(case, repetition, checked)
        if not is_timed:
            _require_right_sum(Updates(case).accepted_sum(repetition), checked, channel)
            return
        measured.check_s.append(seconds)
        measured.rows_s.append(rows_s)
        measured.computing_s.append(seconds - channel.waited_s)
        self._aggregate(lambda: _open_noisy_sum(checked.share_sum, channel))


def _open_noisy_sum(share_sum: FieldArray, channel: CountingChannel) -> None:
    opening.add_noise(share_sum, rounded_gaussian.sample(NOISE_STD, share_sum.size, expanded_bytes()))
    opening.open_in_place(share_sum, "noisy sum", channel)


def _seconds_of_rows(check: ProofCheck) -> float:
    start = time.perf_counter()
    check.project()
    return time.perf_counter() - start


def _require_verdicts(case: Case, repetition: int, checked: Checked) -> None:
    found = tuple(checked.verdicts[slot] for slot in slots_of(case))
    if found != case.expected(repetition):
        raise WrongVerdictError(f"{case}: expected {case.expected(repetition)}, found {found}")


def _require_right_sum(expected: RingArray, checked: Checked, channel: CountingChannel) -> None:
    if not np.array_equal(opening.open_in_place(checked.share_sum, "sum", channel), expected):
        raise WrongVerdictError("the shares of the accepted clients do not add up to their updates")
