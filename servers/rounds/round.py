"""PRECAD's Algorithm 1 at one aggregator. Both run this same program, in step, as party 0 (A) and party 1 (B).

Line by line of the paper: 2 `select`, 3 `collect` and lock, 4 `charge` and `validate`, 5 `open_sum`, 6 `commit`. The
charge comes before the check: the other server may know a verdict that never arrives here. What a mode does in its own
way is its form's (`precad.servers.rounds.form`). Each transition is one function from one state to the next
(`precad.servers.rounds.states`); everything that computes on shares runs in the one MPC thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from precad.dp.accountants.pld import View
from precad.mpc import ring
from precad.mpc.errors import PeerMismatchError
from precad.mpc.joint_coin import digest
from precad.servers.rounds.dealt_form import DealtForm
from precad.servers.rounds.equipment import Compute, Links
from precad.servers.rounds.form import Form, Ground
from precad.servers.rounds.own_noise import OwnNoise
from precad.servers.rounds.proved_form import ProvedForm
from precad.servers.rounds.states import (
    Aborted,
    Charged,
    Collecting,
    Committed,
    Evaluated,
    Locked,
    Opened,
    Proving,
    RoundState,
    Selecting,
    Validated,
)
from precad.servers.rounds.transfers import Capacity
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from precad.servers.store.state import TaskState, require_possible_sum
from precad.servers.supervision import beside, to_the_end

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
        self._link, self._lane, self._tuples = links.peer, links.lane, links.tuples
        noise = OwnNoise(state.task, compute.randomness.noise, capacity.spool)
        self._ground, self._on_state = Ground(state, links, compute, capacity, noise), on_state
        self.form: Form = ProvedForm(self._ground) if state.task.is_proved else DealtForm(self._ground)
        self._seconds: dict[str, float] = {}
        self._proof_bytes = 0
        self._epsilons: dict[View, float] = {}

    async def run_round(self, t: int) -> CommittedRound | EvaluatedRound:
        """Run one round, from the draw of its clients to the new model, or to the sum of an evaluation. Raises what
        ends the task."""
        self._seconds, sent_before, dealt_before = {}, self._bytes_sent, self._tuples.bytes_received
        self._proof_bytes = 0
        collecting = await self.select(self._enter(Selecting(t)))
        locked = await self.collect(self._enter(collecting))
        charged = await self.charge(await self.prove(self._enter(locked)))
        validated = await self.validate(self._enter(charged))
        opened = await self.open_sum(self._enter(validated))
        if self._ground.is_evaluation(t):
            return self._enter(await self.evaluate(self._enter(opened))).record
        committed = await self.commit(self._enter(opened))
        bytes_by_link = {
            "to_peer": self._bytes_sent - sent_before,
            "from_dealer": self._tuples.bytes_received - dealt_before,
            "from_clients": collecting.intake.bytes_received + self._proof_bytes,
        }
        return replace(self._enter(committed).record, seconds=self._seconds, bytes_by_link=bytes_by_link)

    async def select(self, state: Selecting) -> Collecting:
        """Draw each enrolled client with probability q by a joint coin: line 2."""
        with self._phase("select"):
            return await self.form.select(state.round)

    def close(self) -> None:
        """Let go of what was fetched ahead, of an unfinished round's uploads, of past noise; none of it is used."""
        self.form.close()
        if self.task.noise_bands > 1:
            self._ground.compute.thread.submit(self._ground.noise.close)  # after the step that may still read it
        if (t := self.form.round) is not None:
            self.form.give_up()
            self._enter(Aborted(t, "this meeting of the servers is over"))

    async def collect(self, state: Collecting) -> Locked:
        """Invite the chosen and wait for their uploads, of which both servers fix the same set: line 3."""
        with self._phase("collect"):
            invited = await self.form.invite(state)
            arrival = state.intake.wait(
                invited=invited,
                peer_locked=self._link.closed_by_peer(state.round),
                holds=self.task.hides_draws,
            )
            is_evaluation, foresee = self._ground.is_evaluation(state.round), self._state.ledger.foresee
            foreseen = functools.partial(foresee, state.chosen, state.round, is_evaluation=is_evaluation)
            await beside(arrival, foreseen)
            self._link.close_round(state.round)
        with self._phase("lock"):
            return await self.form.lock(state)

    async def prove(self, state: Locked) -> Locked | Proving:
        """Show the challenge in mode `proved`; the clients of active uploads answer it. In others, do nothing.

        The locked uploads are written down meanwhile, before the charge as in every mode.
        """
        if not self.task.is_proved:
            return state  # no phase of its own in the record
        with self._phase("prove"):
            proving = await self.form.challenge(state)
            if proving is None:
                return state
            await beside(self.form.await_proofs(self._enter(proving)), self._write_locked, proving)
        self._proof_bytes = proving.proofs.bytes_received
        return proving

    async def charge(self, state: Locked | Proving) -> Charged:
        """Charge the ledger, durably, for every chosen client: line 4, before the check.

        From the first step of the check on, the other server may learn verdicts and hang up. A client whose update did
        not arrive is charged too.
        """
        with self._phase("charge"):
            self._epsilons = await to_the_end(self._pay, state)
        check = state.check if isinstance(state, Proving) else None
        return Charged(state.round, state.chosen, state.held, state.lock, state.intake, check)

    def _pay(self, state: Locked | Proving) -> dict[View, float]:
        """Charge the round. Return the bounds that the task has reached with it, largest over clients."""
        if not isinstance(state, Proving):  # else it was done while proofs came
            self._write_locked(state)
        self._state.charge(state.round, state.chosen)
        return self._state.spent

    def _write_locked(self, state: Locked | Proving) -> None:
        self._state.store.checking(state.round, chosen=state.chosen, active=state.lock.active)

    async def validate(self, state: Charged) -> Validated:
        """Check each client by one bit, ||update|| <= C, alike at both servers, and sum the valid clients' shares: line
        4."""
        with self._phase("validate"):
            validated = await self.form.validate(state)
        self.form.forget()
        return validated

    async def open_sum(self, state: Validated) -> Opened:
        """Add `Task.noise_std_on_grid` of noise, if any; then exchange both noisy shares and add them up: line 5.

        The verdicts, and a test's margin, are on disk before our share leaves. Should the other server commit the
        round and we not, we can take it over.
        """
        with self._phase("noise"):
            releasing = self._ground.in_mpc_thread(self.form.release, state)
            noisy_share = await beside(releasing, self._write_verdicts, state)
        with self._phase("open"):
            noisy_sum = await self._ground.in_mpc_thread(self.form.open, state.round, noisy_share)
        return Opened(state.round, state.chosen, state.accepted, state.rejected, noisy_sum, state.test)

    def _write_verdicts(self, state: Validated) -> None:
        self._state.store.validated(state.round, accepted=state.accepted, rejected=state.rejected, test=state.test)

    async def commit(self, state: Opened) -> Committed:
        """Take theta + eta / W * (sum + noise), equal at both servers or the task ends: line 6.

        A sum that no round of this task has moves no model: the other server may have sent anything as its share. The
        digest that we send says that our copy is on disk; so no server begins a round that the other may not know.
        Raises PeerMismatchError.
        """
        with self._phase("commit"):
            model = await self._ground.in_mpc_thread(self._state.model_after, state.noisy_sum, len(state.accepted))
            record = CommittedRound(
                number=state.round,
                chosen=state.chosen,
                accepted=state.accepted,
                rejected=state.rejected,
                model_digest=model.digest,
                epsilon_one_server=self._epsilons[View.ONE_SERVER],
                epsilon_clients_only=self._epsilons[View.CLIENTS_ONLY],
                test=state.test,
            )
            await to_the_end(self._state.commit, record, model, state.noisy_sum)
            peers = await self._ground.in_mpc_thread(self._ground.channel(state.round).exchange, "model", model.digest)
            if peers != model.digest:
                raise PeerMismatchError("model after the round", ours=model.digest.hex(), peers=peers.hex())
        return Committed(record, model.parameters)

    async def evaluate(self, state: Opened) -> Evaluated:
        """Take in the sum of an evaluation, equal at both servers or the task ends. It moves no model.

        Raises PeerMismatchError.
        """
        with self._phase("commit"):
            require_possible_sum(state.noisy_sum, self._ground.round_task(state.round), len(state.accepted))
            evaluated = EvaluatedRound(
                number=state.round,
                chosen=state.chosen,
                accepted=state.accepted,
                rejected=state.rejected,
                model_digest=self._state.model.digest,
                noisy_sum=tuple(map(int, state.noisy_sum)),
                epsilon_one_server=self._epsilons[View.ONE_SERVER],
                epsilon_clients_only=self._epsilons[View.CLIENTS_ONLY],
            )
            await to_the_end(self._state.take_evaluation, evaluated)
            ours = digest(b"evaluation", self._state.model.digest, ring.to_bytes(state.noisy_sum))
            peers = await self._ground.in_mpc_thread(self._ground.channel(state.round).exchange, "evaluation", ours)
            if peers != ours:
                raise PeerMismatchError("evaluation of the model", ours=ours.hex(), peers=peers.hex())
        return Evaluated(evaluated)

    @property
    def _bytes_sent(self) -> int:
        return self._link.bytes_sent + self._lane.bytes_sent

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
