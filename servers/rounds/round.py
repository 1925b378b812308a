"""PRECAD's Algorithm 1 at one aggregator. Both run this same program, in step, as party 0 (A) and party 1 (B).

Line by line of the paper: 2 `select`, 3 `collect` and lock, 4 `charge` and `validate`, 5 `open_sum`, 6 `commit`. The
charge comes before the check: the other server may know a verdict that never arrives here. Each transition is one
function from one state to the next (`precad.servers.rounds.states`); everything that computes on shares runs in the
one MPC thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import structlog

from precad.dp.accountants.pld import View
from precad.mpc import joint_coin, validation
from precad.mpc.channel import Channel, Prefixed
from precad.mpc.errors import PeerMismatchError, VerdictsDifferError
from precad.mpc.gate import top_bits
from precad.mpc.joint_coin import CoinShare
from precad.mpc.local.step import Words
from precad.mpc.opening import open_in_place
from precad.mpc.parameters import Mode
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2
from precad.servers.rounds.equipment import Compute, Links
from precad.servers.rounds.intake import Intake
from precad.servers.rounds.relayed import RelayedUploads
from precad.servers.rounds.states import (
    Aborted,
    Charged,
    Collecting,
    Committed,
    Locked,
    Opened,
    RoundState,
    Selecting,
    Validated,
)
from precad.servers.rounds.transfers import Capacity
from precad.servers.rounds.uploads import Payload
from precad.servers.store.rounds import CommittedRound
from precad.servers.store.state import TaskState
from precad.servers.supervision import to_the_end

log = structlog.get_logger(__name__)

T = TypeVar("T")
S = TypeVar("S", bound=RoundState)


class RoundRunner:
    """Runs rounds of one task at one server, from a meeting of the servers until one is lost.

    Everything is handed in; the task's state owns the model.
    """

    def __init__(
        self,
        state: TaskState,
        links: Links,
        compute: Compute,
        capacity: Capacity,
        on_state: Callable[[RoundState], None] = lambda state: None,
    ) -> None:
        """state: of a task that both servers have begun. capacity: for its clients' bytes."""
        self._state, self.task, self.task_id = state, state.task, state.store.task_id
        self._bound = state.task.norm_bound
        self._link, self._lane, self._tuples, self._sessions = links.peer, links.lane, links.tuples, links.sessions
        self._compute, self._capacity, self._on_state = compute, capacity, on_state
        self._loop = asyncio.get_running_loop()
        self._intake: Intake | None = None
        vector_bytes = convert.upload_bytes(Mode.MASKED, 0, state.task.dim)
        self._relayed = RelayedUploads(capacity.spool, vector_bytes, self._take_relay)
        self._link.on_relay = self._relayed.take
        self._ahead: dict[int, tuple[list[str], asyncio.Task[ServerTuples]]] = {}
        self._seconds: dict[str, float] = {}
        self._epsilons: dict[View, float] = {}

    async def run_round(self, t: int) -> CommittedRound:
        """One round, from the draw of its clients to the new model. Raises whatever ends the task."""
        self._seconds, sent_before, dealt_before = {}, self._bytes_sent, self._tuples.bytes_received
        collecting = await self.select(self._enter(Selecting(t)))
        locked = await self.collect(self._enter(collecting))
        charged = await self.charge(self._enter(locked))
        validated = await self.validate(self._enter(charged))
        opened = await self.open_sum(self._enter(validated))
        committed = await self.commit(self._enter(opened))
        bytes_by_link = {
            "to_peer": self._bytes_sent - sent_before,
            "from_dealer": self._tuples.bytes_received - dealt_before,
            "from_clients": collecting.intake.bytes_received,
        }
        return replace(self._enter(committed).record, seconds=self._seconds, bytes_by_link=bytes_by_link)

    async def select(self, state: Selecting) -> Collecting:
        """Line 2: a joint coin draws each enrolled client with probability q; the dealer gives their tuples.

        Both may have happened while an earlier round waited for its clients (`_draw_ahead`).
        """
        with self._phase("select"):
            if state.round not in self._ahead:
                await self._draw(state.round)
            chosen, dealing = self._ahead.pop(state.round)
            tuples = await dealing
        intake = self._open_intake(state.round, chosen)
        return Collecting(state.round, tuple(chosen), tuples, intake, self._state.model.as_bytes)

    async def _draw(self, t: int) -> None:
        """The clients of round t, and a request for their tuples that nobody waits for yet.

        The number is used up when our half of the coin may leave. A server that left between two rounds takes no part
        in the first step, so it costs none.
        """
        context, coin = f"{self.task_id}/{t}/selection", self._compute.randomness.coin
        ours, theirs = await self._in_mpc_thread(joint_coin.commit, context, self._channel(t), coin)
        # before, all that has left is a hash of a coin that may be forgotten
        await to_the_end(self._state.store.reserve, t)
        chosen = await self._in_mpc_thread(self._draw_clients, t, ours, theirs)
        dealing = asyncio.create_task(self._tuples.batch(self._batch_shape(t, chosen)))
        dealing.add_done_callback(_look_at)
        self._ahead[t] = chosen, dealing

    async def _draw_ahead(self, t: int) -> None:
        """After the invitations of round t, so in the same place of both servers' steps. Who is drawn depends on no
        round's outcome, and whether a round takes place depends on nobody who was drawn."""
        n_left = self.task.rounds - self._state.n_committed - 1
        for coming in range(t + 1, t + min(self.task.batches_ahead, n_left) + 1):
            if coming not in self._ahead:
                await self._draw(coming)

    def close(self) -> None:
        """Let go of what was fetched ahead and of the uploads of an unfinished round; none of it is ever used."""
        for _, dealing in self._ahead.values():
            dealing.cancel()
        self._ahead.clear()
        self._relayed.close()
        if self._intake is not None:
            self._intake.close()
            self._compute.thread.submit(self._intake.forget)  # after the step that may still read them
            self._enter(Aborted(self._intake.round, "the servers lost one another"))
            self._intake = None

    def _open_intake(self, t: int, chosen: list[str]) -> Intake:
        relays = self._link.party == 0 and self.task.wire_mode is Mode.MASKED
        self._intake = Intake(
            task=self.task,
            task_id=self.task_id,
            party=self._link.party,
            round=t,
            chosen=chosen,
            model_digest=self._state.model.digest,
            capacity=self._capacity,
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

    def _draw_clients(self, t: int, ours: CoinShare, theirs: bytes) -> list[str]:
        label = Label(self.task_id, t)
        coin = joint_coin.reveal(ours, theirs, b"", self._channel(t))
        return joint_coin.select_poisson(coin, label, sorted(self.task.clients), self.task.client_rate)

    def _batch_shape(self, t: int, chosen: list[str]) -> BatchShape:
        blocks = top_bits.blocks(self._compute.gate, len(chosen), self._bound.low_bits)
        return BatchShape(self.task_id, t, tuple(chosen), self.task.dim, blocks)

    async def _invite(self, tuples: ServerTuples, chosen: tuple[str, ...], intake: Intake) -> frozenset[str]:
        """Invites the chosen ones that are connected, and says who they are. Their tuples are burnt before."""
        invited, seeds = self._sessions.connected.intersection(chosen), dict[str, Seed]()
        if self.task.wire_mode is Mode.MASKED:
            seeds = await asyncio.to_thread(tuples.hand_out_mask_seeds, sorted(invited))
            invited &= self._sessions.connected  # who has hung up meanwhile wastes a tuple
            if self._link.party == 1:
                intake.await_relays({client: seeds[client] for client in invited})
        for client in invited:
            invitation = self._invitation(tuples, client, seeds.get(client))
            self._sessions.send(client, aggregator_pb2.ClientEvent(invitation=invitation))
        return invited

    def _invitation(self, tuples: ServerTuples, client: str, mask_seed: Seed | None) -> aggregator_pb2.Invitation:
        return aggregator_pb2.Invitation(
            task=self.task_id,
            round=tuples.shape.round,
            slot=tuples.shape.slot_of(client),
            dim=self.task.dim,
            model_digest=self._state.model.digest,
            deadline_s=self.task.submit_timeout_s,
            mask_seed=b"" if mask_seed is None else mask_seed.reveal(),
            n_committed=self._state.n_committed,
            peer_mask_seed_digest=b"" if mask_seed is None else tuples.peer_mask_seed_digest(client),
        )

    async def collect(self, state: Collecting) -> Locked:
        """Line 3: invites the chosen, waits for their uploads; then both servers fix the same set of them."""
        with self._phase("collect"):
            invited = await self._invite(state.tuples, state.chosen, state.intake)
            await self._draw_ahead(state.round)
            await state.intake.wait(invited=invited, peer_locked=self._link.closed_by_peer(state.round))
            self._link.close_round(state.round)
        with self._phase("lock"):
            bindings, shape, coin = state.intake.close(), state.tuples.shape, self._compute.randomness.coin
            lock = await self._in_mpc_thread(validation.lock, bindings, shape, self._channel(state.round), coin)
        return Locked(state.round, state.chosen, state.tuples, lock, state.intake)

    async def charge(self, state: Locked) -> Charged:
        """Line 4, before the check: the ledger pays, durably, for every chosen client.

        From the first step of the check on, the other server may learn verdicts and hang up. A client whose update did
        not arrive is charged too.
        """
        with self._phase("charge"):
            self._epsilons = await to_the_end(self._pay, state)
        return Charged(state.round, state.chosen, state.tuples, state.lock, state.intake)

    def _pay(self, state: Locked) -> dict[View, float]:
        """Charge the round. Return the bounds that the task has reached with it, largest over clients."""
        self._state.store.checking(state.round, chosen=state.chosen, active=state.lock.active)
        self._state.charge(state.round, state.chosen)
        return self._state.spent

    async def validate(self, state: Charged) -> Validated:
        """Line 4: one bit per client, ||update|| <= C, alike at both servers, and the valid clients' share sum."""
        with self._phase("validate"):
            checked = await self._in_mpc_thread(self._validate, state)
        await self._link.flush()  # a relay that was too late for the lock is read to its end all the same
        state.intake.forget()
        self._intake = None
        return Validated(state.round, state.chosen, checked.accepted, checked.rejected, checked.accepted_share_sum)

    def _validate(self, state: Charged) -> validation.Validated:
        channel = self._channel(state.round)
        active, intake, compute = state.lock.active, state.intake, self._compute
        uploads: dict[str, Words] = {client: intake.vector(client) for client in active}
        if self.task.wire_mode is Mode.MASKED:
            revealed = validation.reveal(state.lock, uploads, state.tuples, channel)
        else:
            rooms = {client: intake.room(client) for client in active}
            revealed = validation.reveal_and_open(state.lock, uploads, state.tuples, channel, rooms)
        checked = validation.validate(revealed, state.tuples, self._bound, compute.gate, channel, compute.engine)
        try:
            validation.compare_verdicts(checked, channel)
        except VerdictsDifferError as error:
            log.error("round.verdicts_differ", round=state.round, clients=list(error.clients))
            raise
        return checked

    async def open_sum(self, state: Validated) -> Opened:
        """Line 5: `Task.noise_std_on_grid` of noise, if any; then both noisy shares are exchanged and added up.

        The verdicts are on disk before our share leaves: should the other server commit the round and we not, we can
        take it over.
        """
        with self._phase("noise"):
            noisy_share, _ = await asyncio.gather(
                self._in_mpc_thread(self._release, state.share_sum, len(state.accepted)),
                to_the_end(self._write_verdicts, state),
            )
        with self._phase("open"):
            await self._in_mpc_thread(open_in_place, noisy_share, "noisy sum", self._channel(state.round))
        return Opened(state.round, state.chosen, state.accepted, state.rejected, noisy_share)

    def _release(self, share_sum: RingArray, n_accepted: int) -> RingArray:
        """Return what leaves this server; in place, since d words may be most of a server's memory.

        Nothing of the uploads leaves where there are too few of them to hide one another by the noise that clients add.
        """
        if not self.task.may_release(n_accepted):
            share_sum[:] = 0
        if self.task.noise_std_on_grid > 0:
            share_sum += self._compute.randomness.noise(self.task.noise_std_on_grid, self.task.dim)
        return share_sum

    def _write_verdicts(self, state: Validated) -> None:
        self._state.store.validated(state.round, accepted=state.accepted, rejected=state.rejected)

    async def commit(self, state: Opened) -> Committed:
        """Line 6: theta + eta / W * (sum + noise), equal at both servers or the task ends.

        A sum that no round of this task has moves no model: the other server may have sent anything as its share. The
        digest that we send says that our copy is on disk; so no server begins a round that the other may not know.
        """
        with self._phase("commit"):
            model = await self._in_mpc_thread(self._state.model_after, state.noisy_sum, len(state.accepted))
            record = CommittedRound(
                number=state.round,
                chosen=state.chosen,
                accepted=state.accepted,
                rejected=state.rejected,
                model_digest=model.digest,
                epsilon_one_server=self._epsilons[View.ONE_SERVER],
                epsilon_clients_only=self._epsilons[View.CLIENTS_ONLY],
            )
            await to_the_end(self._state.commit, record, model, state.noisy_sum)
            peers = await self._in_mpc_thread(self._channel(state.round).exchange, "model", model.digest)
            if peers != model.digest:
                raise PeerMismatchError("model after the round", ours=model.digest.hex(), peers=peers.hex())
        return Committed(record, model.parameters)

    def _channel(self, t: int) -> Channel:
        return Prefixed(self._lane, f"{self.task_id}/{t}")

    @property
    def _bytes_sent(self) -> int:
        return self._link.bytes_sent + self._lane.bytes_sent

    async def _in_mpc_thread(self, function: Callable[..., T], *args: object) -> T:
        return await self._loop.run_in_executor(self._compute.thread, function, *args)

    def _enter(self, state: S) -> S:
        self._on_state(state)
        return state

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = time.perf_counter() - start


def _look_at(task: asyncio.Task[ServerTuples]) -> None:
    """Its error, if any, is for whoever needs the batch; when nobody does, it is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
