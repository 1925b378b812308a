"""A round of the modes `masked` and `shares`: a dealer's tuples, gates, and a masked equality for each client."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import structlog

from precad.mpc import validation
from precad.mpc.errors import ParameterError, VerdictsDifferError
from precad.mpc.local.step import Words
from precad.mpc.locking import lock_list
from precad.mpc.opening import open_in_place
from precad.mpc.parameters import Mode
from precad.mpc.prg import Seed
from precad.mpc.proved.field import FieldArray
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.task import Task
from precad.protos.task.trim_fields import Tested
from precad.servers.errors import SetupError
from precad.servers.rounds.dealt_blocks import blocks_of
from precad.servers.rounds.form import Form, Ground
from precad.servers.rounds.intake import Intake
from precad.servers.rounds.krum_sum import selected_sum
from precad.servers.rounds.relayed_uploads import RelayedUploads
from precad.servers.rounds.states import Charged, Collecting, Locked, Validated
from precad.servers.rounds.sum_function import blocks_of_function, share_of_function
from precad.servers.rounds.trimmed_sum import sum_of_shortest, tested_sum
from precad.servers.rounds.uploads import Payload

log = structlog.get_logger(__name__)


def require_set(task: Task) -> None:
    """Raise SetupError unless the set of updates is known here, with the file of its directions."""
    try:
        _ = task.update_set
    except ParameterError as error:
        raise SetupError(f"task.{error}") from None


class DealtForm(Form):
    """Its rounds may be drawn ahead, so that nobody waits for the dealer."""

    def __init__(self, ground: Ground) -> None:
        self._ground, self.task = ground, ground.task
        self._link, self._tuples, self._sessions = ground.links.peer, ground.links.tuples, ground.links.sessions
        self._intake: Intake | None = None
        longest = max(one.dim for one in (self.task, self.task.evaluation_round) if one is not None)
        vector_bytes = convert.upload_bytes(Mode.MASKED, 0, longest)
        self._relayed = RelayedUploads(ground.capacity.spool, vector_bytes, self._take_relay)
        self._link.on_relay = self._relayed.take
        self.ahead: dict[int, tuple[list[str], asyncio.Task[ServerTuples]]] = {}
        """Clients, and the request for their tuples, of rounds that are to come."""

    @property
    def round(self) -> int | None:
        """See `Form.round`."""
        return None if self._intake is None else self._intake.round

    async def select(self, t: int) -> Collecting:
        """See `Form.select`; both may have happened while an earlier round waited for its clients."""
        if t not in self.ahead:
            await self._draw(t, self._ground.round_task(t))
        chosen, dealing = self.ahead.pop(t)
        tuples = await dealing
        return Collecting(t, tuple(chosen), tuples, self._open_intake(t, chosen), self._ground.state.model.as_bytes)

    async def _draw(self, t: int, of_round: Task) -> None:
        """Draw the clients of round t into `ahead`, and ask for their tuples that nobody waits for yet."""
        coin = await self._ground.selection_coin(t)
        chosen = self._ground.chosen(coin, t)
        dealing = asyncio.create_task(self._tuples.batch(self._batch_shape(t, chosen, of_round)))
        dealing.add_done_callback(_look_at)
        self.ahead[t] = chosen, dealing

    async def _draw_ahead(self, t: int) -> None:
        """After the invitations of round t, so in the same place of both servers' steps. Who is drawn depends on no
        round's outcome, and whether a round takes place depends on nobody who was drawn."""
        coming = itertools.islice(self._ground.state.coming(t), 1, self.task.draws_ahead + 1)
        for number, of_round in coming:
            if number not in self.ahead:
                await self._draw(number, of_round)

    def _batch_shape(self, t: int, chosen: list[str], of_round: Task) -> BatchShape:
        gate, dealt = self._ground.compute.gate, (of_round.rules.keeps_some, of_round.rules.selects)
        assert gate is not None  # of every mode but `proved`
        blocks = (*blocks_of(of_round, gate, len(chosen)), *blocks_of_function(of_round, self._ground.compute.function))
        further = (*dealt, tuple(of_round.layer_sizes))
        return BatchShape(self._ground.state.store.task_id, t, tuple(chosen), of_round.dim, blocks, *further)

    def _open_intake(self, t: int, chosen: list[str]) -> Intake:
        relays = self._link.party == 0 and self.task.wire_mode is Mode.MASKED
        self._intake = Intake(
            task=self._ground.round_task(t),
            task_id=self._ground.state.store.task_id,
            party=self._link.party,
            round=t,
            chosen=chosen,
            model_digest=self._ground.state.model.digest,
            capacity=self._ground.capacity,
            relay=self._link.relay if relays else None,
        )
        return self._intake

    def _take_relay(self, t: int, client: str, payload: Payload, statement: bytes) -> None:
        """A masked upload from server A. Nobody can have made it who did not have our invitation, so a round that is
        not open has none."""
        if self._intake is None:
            payload.discard()
        else:
            self._intake.relay(t, client, payload, statement)

    async def invite(self, state: Collecting) -> frozenset[str]:
        """See `Form.invite`. Their tuples are burnt before."""
        tuples, intake = _tuples_of(state), _intake_of(state)
        invited, seeds = self._sessions.connected.intersection(state.chosen), dict[str, Seed]()
        if self.task.wire_mode is Mode.MASKED:
            seeds = await asyncio.to_thread(tuples.hand_out_mask_seeds, sorted(invited))
            invited &= self._sessions.connected  # who has hung up meanwhile wastes a tuple
            if self._link.party == 1:
                intake.await_relays({client: seeds[client] for client in invited})
        for client in invited:
            digest = tuples.peer_mask_seed_digest(client) if client in seeds else b""
            slot, seed = tuples.shape.slot_of(client), seeds.get(client)
            invitation = self._ground.invitation(state.round, slot, seed, digest)
            self._sessions.send(client, aggregator_pb2.ClientEvent(invitation=invitation))
        await self._draw_ahead(state.round)
        return invited

    async def lock(self, state: Collecting) -> Locked:
        """See `Form.lock`."""
        tuples, ground = _tuples_of(state), self._ground
        bindings, coin = state.intake.close(), ground.compute.randomness.coin
        label, channel = tuples.shape.label(), ground.channel(state.round)
        lock = await ground.in_mpc_thread(lock_list, bindings, label, tuples.shape.clients, channel, coin)
        return Locked(state.round, state.chosen, tuples, lock, state.intake)

    async def validate(self, state: Charged) -> Validated:
        """See `Form.validate`."""
        checked, test = await self._ground.in_mpc_thread(self._validate, state)
        of_round, function = self._ground.round_task(state.round), self._ground.compute.function
        if of_round.sum_function is not None and function is not None:
            of_sum = (function, checked.accepted_share_sum, _tuples_of(state), self._ground.channel(state.round))
            share = await self._ground.in_mpc_thread(share_of_function, *of_sum)
            checked = replace(checked, accepted_share_sum=share)
        await self._link.flush()  # a relay that was too late for the lock is read to its end all the same
        verdicts = (checked.accepted, checked.rejected)
        return Validated(state.round, state.chosen, *verdicts, checked.accepted_share_sum, test)

    def _validate(self, state: Charged) -> tuple[validation.Validated, Tested | None]:
        """Check, and choose or test where the task says so: the share is then that of the choice, or the branch."""
        channel, tuples = self._ground.channel(state.round), _tuples_of(state)
        active, intake, compute = state.lock.active, _intake_of(state), self._ground.compute
        assert compute.gate is not None  # of every mode but `proved`
        uploads: dict[str, Words] = {client: intake.vector(client) for client in active}
        if not self.task.checks_norms:
            if self.task.wire_mode is Mode.MASKED:
                return validation.accept_all(active, uploads, tuples, compute.engine), None
            return validation.accept_all_shares(active, uploads, self.task.dim), None
        if self.task.wire_mode is Mode.MASKED:
            revealed = validation.reveal(state.lock, uploads, tuples, channel)
        else:
            rooms = {client: intake.room(client) for client in active}
            revealed = validation.reveal_and_open(state.lock, uploads, tuples, channel, rooms)
        of_round = self._ground.round_task(state.round)
        checked = validation.validate(revealed, tuples, of_round.update_set, compute.gate, channel, compute.engine)
        try:
            validation.compare_verdicts(checked, channel)
        except VerdictsDifferError as error:
            log.error("round.verdicts_differ", round=state.round, clients=list(error.clients))
            raise
        opened = (revealed.opened, tuples, compute.gate)
        if (choice := of_round.krum_rule) is not None:
            if (n := len(checked.accepted)) < (needed := choice.least_accepted):
                log.warning("round.below_krums_guarantee", round=state.round, accepted=n, needed=needed)
            return replace(checked, accepted_share_sum=selected_sum(choice, checked, *opened, channel)), None
        if (dropped := of_round.dropped_count) is not None:
            shortest = sum_of_shortest(of_round, dropped, checked, *opened, channel)
            return replace(checked, accepted_share_sum=shortest), None
        if (rule := of_round.trim_rule) is None:
            return checked, None
        F, noise = self._ground.state.trim_count, compute.randomness.margin_noise(rule.mechanism.margin_scale)
        share_sum, test = tested_sum(of_round, rule, F, checked, *opened, noise, channel)
        return replace(checked, accepted_share_sum=share_sum), test

    def release(self, state: Validated) -> RingArray:
        """See `Form.release`. Words modulo 2^64."""
        share: RingArray = state.share_sum.view(np.int64)
        of_round = self._ground.round_task(state.round)
        if not of_round.may_release(len(state.accepted)):
            share[:] = 0
        if of_round.noise_std_on_grid > 0:
            share += self._ground.noise_of(of_round, state.test)
        return share

    def open(self, t: int, noisy_share: RingArray | FieldArray) -> RingArray:
        """See `Form.open`."""
        share: RingArray = noisy_share.view(np.int64)
        open_in_place(share, "noisy sum", self._ground.channel(t))
        return share

    def forget(self) -> None:
        """See `Form.forget`."""
        if self._intake is not None:
            self._intake.forget()
        self._intake = None

    def give_up(self) -> None:
        """See `Form.give_up`."""
        if self._intake is not None:
            self._intake.close()
            self._ground.compute.thread.submit(self._intake.forget)  # after the step that may still read them
        self._intake = None

    def close(self) -> None:
        """See `Form.close`."""
        for _, dealing in self.ahead.values():
            dealing.cancel()
        self.ahead.clear()
        self._relayed.close()


def _tuples_of(state: Collecting | Charged) -> ServerTuples:
    assert isinstance(state.held, ServerTuples)  # `select` put them there
    return state.held


def _intake_of(state: Collecting | Charged) -> Intake:
    assert isinstance(state.intake, Intake)  # `select` opened it
    return state.intake


def _look_at(task: asyncio.Task[ServerTuples]) -> None:
    """Its error, if any, is for whoever needs the batch; when nobody does, it is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
