"""A round of mode `proved`: clients prove their norms, and no vector passes between the servers before the noisy sum.

A server shows its coin once the peer's lock is here (rule S1). Clients answer the challenge. A round is charged before
`validation/proofs`, from which on the peer may learn a verdict. The points are drawn when no proof can change any more,
and each proof is opened once (S3). The steps are those of docs/reference/protocol-v2.md, sections 5 to 9.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np

from precad.mpc import joint_coin
from precad.mpc.locking import lock_list
from precad.mpc.prg import Seed
from precad.mpc.proved import opening, validation
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.submission import Binding, Relay, ShareSeeds, seeded_of, slot_labels
from precad.mpc.proved.validation import Checked
from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import aggregator_pb2
from precad.servers.rounds import fixed_times
from precad.servers.rounds.form import Form, Ground
from precad.servers.rounds.proved_intake import PROOFS, Bind, Proofs, ProvedUploads
from precad.servers.rounds.states import Charged, Collecting, Locked, Proving, Slots, Validated


class ProvedForm(Form):
    """One round at a time: nothing is drawn ahead."""

    def __init__(self, ground: Ground) -> None:
        self._ground, self.task = ground, ground.task
        self._link, self._sessions = ground.links.peer, ground.links.sessions
        self._uploads: ProvedUploads | None = None
        self._proofs: Proofs | None = None
        self._invited_at = 0.0
        self._link.on_word = self._take_word

    @property
    def round(self) -> int | None:
        """See `Form.round`."""
        return None if self._uploads is None else self._uploads.round

    def _take_word(self, phase: int, relay: Relay) -> None:
        """A relay of a phase that is not open here changes nothing."""
        intake = self._proofs if phase == PROOFS else self._uploads
        if intake is not None:
            intake.relay(relay)

    async def select(self, t: int) -> Collecting:
        """See `Form.select`. Slots are random labels, so that one says nothing of who else was drawn."""
        ground, label = self._ground, self._ground.label(t)
        coin = await ground.selection_coin(t)
        chosen = ground.chosen(coin, t)
        of_client = slot_labels(coin, label, len(self.task.clients), chosen)
        slots = Slots(of_client, ShareSeeds(ground.party, ground.compute.randomness.share_seeds))
        self._uploads = ProvedUploads(
            label=label,
            party=ground.party,
            slots=of_client,
            sizes=ground.round_task(t).proof_sizes,
            seeds=slots.seeds,
            bind=self._binder(t),
            timeout_s=self.task.submit_timeout_s,
            capacity=ground.capacity,
            tell=self._link.tell,
            told_all=self._link.send_words,
        )
        return Collecting(t, tuple(chosen), slots, self._uploads, ground.state.model.as_bytes)

    def _binder(self, t: int) -> Bind:
        """Return what makes the binding of a client's upload, of this server's own task, round and model."""
        state, of_round = self._ground.state, self._ground.round_task(t)
        blank = Binding(
            task=state.store.task_id,
            round=t,
            client="",
            config_digest=of_round.digest(),
            model_digest=state.model.digest,
            dim=of_round.dim,
            payload_digest=b"",
        )
        return lambda client, payload_digest: replace(blank, client=client, payload_digest=payload_digest)

    async def invite(self, state: Collecting) -> frozenset[str]:
        """See `Form.invite`. A share seed is drawn as it is given, and is given once (S0)."""
        slots = _slots_of(state)
        invited = self._sessions.connected.intersection(state.chosen)
        self._invited_at = time.monotonic()
        for client in sorted(invited):
            slot = slots.of_client[client]
            seed = slots.seeds.give(slot) if seeded_of(slot) == self._ground.party else None
            invitation = self._ground.invitation(state.round, slot, seed)
            self._sessions.send(client, aggregator_pb2.ClientEvent(invitation=invitation))
        return invited

    async def lock(self, state: Collecting) -> Locked:
        """See `Form.lock`."""
        ground, slots = self._ground, _slots_of(state)
        bindings, coin = state.intake.close(), ground.compute.randomness.coin
        label, channel = ground.label(state.round), ground.channel(state.round)
        lock = await ground.in_mpc_thread(lock_list, bindings, label, slots.clients, channel, coin)
        return Locked(state.round, state.chosen, slots, lock, state.intake)

    async def challenge(self, state: Locked) -> Proving:
        """See `Form.challenge`. The peer's lock is here; its coin must fit its commitment (S1)."""
        ground, slots, lock, uploads = self._ground, _slots_of(state), state.lock, self._uploads
        assert uploads is not None  # `select` opened it
        channel, label = ground.channel(state.round), ground.label(state.round)
        seed: Seed = await ground.in_mpc_thread(
            joint_coin.reveal, lock.coin, lock.peers_commitment, lock.transcript, channel
        )
        sizes = ground.round_task(state.round).proof_sizes
        check = ProofCheck(ground.party, label, sizes, seed, uploads.locked(lock.active))
        self._proofs = Proofs(
            label=label,
            party=ground.party,
            slots={client: slots.of_client[client] for client in lock.active},
            sizes=sizes,
            check=check,
            timeout_s=self.task.proof_timeout_s,
            capacity=ground.capacity,
            tell=self._link.tell,
            told_all=self._link.send_words,
        )
        await self._until_told()
        self._send_challenge(state.round, seed, lock.active)
        ground.compute.thread.submit(check.project, ground.compute.engine)  # beside the proofs; `open` meets its errors
        return Proving(state.round, state.chosen, slots, lock, uploads, self._proofs, check)

    async def _until_told(self) -> None:
        """Wait for the time of challenges, in a task that hides draws: a wait, and the work since, tells of whom."""
        if self.task.challenge_after_s is not None:
            at = self._invited_at + self.task.challenge_after_s
            fixed_times.note_if_late(at, self._ground.state.store.task_id)
            await asyncio.sleep(max(0.0, at - time.monotonic()))

    def _send_challenge(self, t: int, seed: Seed, active: tuple[str, ...]) -> None:
        challenge = aggregator_pb2.Challenge(round=t, challenge=seed.reveal(), deadline_s=self.task.proof_timeout_s)
        for client in self._sessions.connected.intersection(active):
            self._sessions.send(client, aggregator_pb2.ClientEvent(challenge=challenge))

    async def await_proofs(self, state: Proving) -> None:
        """See `Form.await_proofs`. Who hung up before the challenge is not awaited: it answers that of both servers."""
        asked = self._sessions.connected.intersection(state.lock.active)
        peer_locked = self._link.closed_by_peer(state.round, PROOFS)
        await state.proofs.wait(invited=asked, peer_locked=peer_locked, holds=self.task.hides_draws)
        self._link.close_round(state.round, PROOFS)
        state.proofs.close()

    async def validate(self, state: Charged) -> Validated:
        """See `Form.validate`."""
        checked = await self._ground.in_mpc_thread(self._validate, state)
        of_client = _slots_of(state).of_client
        accepted, rejected = (
            tuple(client for client in state.chosen if checked.verdicts.get(of_client[client]) is is_valid)
            for is_valid in (True, False)
        )
        await self._link.flush()
        return Validated(state.round, state.chosen, accepted, rejected, checked.share_sum)

    def _validate(self, state: Charged) -> Checked:
        ground, slots, check = self._ground, _slots_of(state), state.check
        assert check is not None  # `challenge` made it
        in_order = [slots.of_client[client] for client in slots.clients]
        compute = ground.compute
        return validation.validate(
            check, in_order, ground.channel(state.round), compute.engine, compute.randomness.coin
        )

    def release(self, state: Validated) -> FieldArray:
        """See `Form.release`. Elements."""
        share: FieldArray = state.share_sum.view(np.uint64)
        of_round = self._ground.round_task(state.round)
        if not of_round.may_release(len(state.accepted)):
            share[:] = 0
        if of_round.noise_std_on_grid > 0:
            opening.add_noise(share, self._ground.noise_of(of_round))
        return share

    def open(self, t: int, noisy_share: RingArray | FieldArray) -> RingArray:
        """See `Form.open`."""
        return opening.open_in_place(noisy_share.view(np.uint64), "noisy sum", self._ground.channel(t))

    def forget(self) -> None:
        """See `Form.forget`."""
        for intake in (self._uploads, self._proofs):
            if intake is not None:
                intake.forget()
        self._uploads = self._proofs = None

    def give_up(self) -> None:
        """See `Form.give_up`."""
        if self._proofs is not None:
            self._proofs.stop()
        for intake in (self._uploads, self._proofs):
            if intake is not None:
                intake.close()
                self._ground.compute.thread.submit(intake.forget)  # after the step that may still read them
        self._uploads = self._proofs = None

    def close(self) -> None:
        """See `Form.close`. Nothing is fetched ahead."""


def _slots_of(state: Collecting | Locked | Charged) -> Slots:
    assert isinstance(state.held, Slots)  # `select` put them there
    return state.held
