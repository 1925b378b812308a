"""One task at one aggregator: it meets the other one and runs rounds, again and again until the task is over.

    meet the other aggregator -> dealer -> clients -> rounds -> end
    ^                                                  |
    '--- wait for whoever was lost --------------------'

Until both servers agree nothing is computed. When the link, the lane or the dealer is lost, the round in flight is
given up on both servers. Both meet again (`precad.servers.task.meeting`), as they do after a crash. Whatever else goes
wrong ends the task on every process with one clear reason, and releases nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import grpc
import structlog

from precad.dp.accountants.task_cost import Charged
from precad.dp.errors import DpError
from precad.mpc.errors import ChannelClosedError, MpcError
from precad.mpc.sharing import Party
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.protos.precad.v1 import common_pb2
from precad.protos.task.task_fields import hello_to
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.protos.tls.transport import dial
from precad.servers.config import AggregatorConfig
from precad.servers.door.servicers import PeerServicer
from precad.servers.errors import PeerUnreachableError, ServerError, SetupError, StoreError, TooFewClientsError
from precad.servers.links.credentials import Credentials
from precad.servers.links.dealer import NoDealer, TupleSource
from precad.servers.links.peer import PeerLink
from precad.servers.rounds.equipment import Compute, Links
from precad.servers.rounds.fixed_times import note_if_late
from precad.servers.rounds.round import RoundRunner
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import RoundState
from precad.servers.rounds.transfers import Capacity
from precad.servers.store.folder import write_round
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from precad.servers.store.state import TaskState
from precad.servers.supervision import first_error_or_result, let_go, to_the_end
from precad.servers.task.drain import Drain
from precad.servers.task.meeting import Meeting, level, meet
from precad.servers.task.patience import GOODBYE_S, LINGER_S, Patience
from precad.servers.telemetry.evaluations import figures_in, write_figures
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.model_figures import FILE

log = structlog.get_logger(__name__)

RETRY_S = 0.2
"""Time between two tries to meet, and between two looks whether the server is to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """Everything is the process's, and handed in; `run` does the rest."""

    party: Party
    config: AggregatorConfig
    peer_address: str
    """Address of aggregator B, which A dials."""
    dealer_address: str | None
    """Address of the dealer, which mode `proved` has not."""
    state: TaskState
    telemetry: Telemetry
    """Told what happens here, for the services and for operators."""
    sessions: Sessions
    capacity: Capacity
    peer_servicer: PeerServicer
    credentials: Credentials
    compute: Compute
    drain: Drain
    on_state: Callable[[RoundState], None]
    notify: Callable[[], Awaitable[None]]
    """Wakes those who watch: there is a new record."""

    async def run(self) -> str:
        """Meet the other server and run rounds, again and again until the task is over. Returns why it is.

        Raises the first error that waiting does not mend, and PeerUnreachableError when another server was gone for too
        long.
        """
        self._show_lost()
        patience = Patience(self.config.connect_timeout_s, self.config.reconnect_timeout_s)
        before: Exception | None = None  # what last kept us from a meeting, or ended one
        while True:
            self.drain.between_rounds()
            if await asyncio.to_thread(lambda: self.state.store.is_finished):
                patience.nears_its_end()
            try:
                async with AsyncExitStack() as stack:
                    self.telemetry.entered("linking")
                    meeting = await meet(
                        stack,
                        self.state,
                        self.config,
                        self.peer_servicer,
                        party=self.party,
                        peer_address=self.peer_address,
                        credentials=self.credentials,
                        timeout_s=patience.left_s,
                        random_bytes=self.compute.randomness.coin,
                    )
                    before = None
                    return await self._run_together(stack, meeting, patience)
            except (PeerUnreachableError, ChannelClosedError) as error:
                let_go(error)  # of what a round's frames hold: the other server says for how long we wait
                if (why_over := await self._after_loss(error, before, patience)) is not None:
                    return why_over
                before = error
                await asyncio.sleep(RETRY_S)
            except Exception:
                with suppress(ServerError):  # what ended the task is what counts
                    await self._settle()
                raise

    async def _after_loss(
        self, error: PeerUnreachableError | ChannelClosedError, before: Exception | None, patience: Patience
    ) -> str | None:
        """Decide what to do after losing a server. Return None to wait for the lost server and meet again.

        Return why the task is over if it is over without the lost server and time is up. Raises `error` if time is up
        and the task is not over.
        """
        await self._settle()
        await asyncio.to_thread(self._require_rounds_left)
        if patience.starts_or_goes_on(await asyncio.to_thread(lambda: self.state.store.next_round)):
            log.warning("aggregator.interrupted", task=self.state.store.task_id, reason=str(error))
            await asyncio.to_thread(self.state.store.interrupted, self.telemetry.interrupted(), str(error))
            return None
        if (why_over := await asyncio.to_thread(lambda: self.state.why_over_alone)) is None:
            raise _after(before, error)
        log.warning("aggregator.over_alone", reason=str(error))  # the last release is on our disk
        await asyncio.to_thread(self.state.store.finished, why_over)
        return why_over

    async def _settle(self) -> None:
        """Take in what the round in flight left on disk, and show operators what was lost with it."""
        # in the MPC thread, so behind the step that it may still be in; what others wrote down has come to its end
        charged = await asyncio.get_running_loop().run_in_executor(self.compute.thread, self._refreshed)
        self.telemetry.charged = charged
        self._show_lost()

    def _refreshed(self) -> Charged:
        """Read the disk again. Return what budgets count before the coming round. Blocking."""
        self.state.refresh()
        return self.state.ledger.charged_before(self.state.store.next_round)

    def _show_lost(self) -> None:
        for attempt in self.telemetry.settled(self.state.lost, self.state.unknown):
            log.warning("round.verdicts_unknown", round=attempt.number, clients=list(attempt.active))

    def _require_rounds_left(self) -> None:
        """Refuse to wait for a server with which no round can follow. Raises TaskRefusedError."""
        if self.state.why_over is None and not self.state.can_be_level:
            self.state.require_rounds_left()

    async def _run_together(self, stack: AsyncExitStack, meeting: Meeting, patience: Patience) -> str:
        """Run from a meeting to the end of the task, or to the loss of another server. Return why the task is over.

        The other servers are told how the task ended while their links still stand. When the task is over, they are
        told once that is on our disk. So a server that hears it may forget us, and one that was lost before is waited
        for.
        """
        link, tuples = meeting.link, self._tuple_source(meeting)
        guards = (asyncio.create_task(_stays(link)), asyncio.create_task(tuples.run()))
        goodbye = common_pb2.Goodbye(finished=False, reason="it was stopped")  # for as long as nothing else is known
        try:
            level_now = asyncio.get_running_loop().run_in_executor(
                self.compute.thread, level, self.state, meeting, self.compute.randomness.coin
            )
            await first_error_or_result(level_now, guards)
            self.state.agreed_round = meeting.agreement.next_round
            self.telemetry.charged = self.state.ledger.charged_before(meeting.agreement.next_round)
            await self._show_taken_over()
            self._show_lost()
            runner = self._runner(meeting, tuples)
            stack.callback(runner.close)
            goodbye.reason = await first_error_or_result(
                self._rounds(tuples, runner, meeting.agreement.next_round, patience), guards
            )
            await asyncio.to_thread(self.state.store.finished, goodbye.reason)
            goodbye.finished = True
        except Exception as error:
            goodbye.reason = public_reason(AGGREGATORS[self.party], error)
            raise
        finally:
            has_peer_finished = await self._leave(link, tuples, guards, goodbye)
        if not has_peer_finished:
            raise PeerUnreachableError("the other aggregator left before it said that it had finished")
        return goodbye.reason

    def _runner(self, meeting: Meeting, tuples: TupleSource | NoDealer) -> RoundRunner:
        self.telemetry.in_task(meeting.agreement.task_id, self.state.model.parameters)
        links = Links(meeting.link, meeting.lane, tuples, self.sessions)
        return RoundRunner(self.state, links, self.compute, self.capacity, self.on_state)

    async def _show_taken_over(self) -> None:
        """Show operators the round that the other server had committed and we had not, if there is one."""
        for round in self.state.committed[len(self.telemetry.records) :]:
            await self._publish(round)

    def _tuple_source(self, meeting: Meeting) -> TupleSource | NoDealer:
        dealer_address, pins = self.dealer_address, self.credentials.dealer
        if dealer_address is None or pins is None:
            return NoDealer()

        def channel() -> grpc.aio.Channel:
            return dial(dealer_address, Role.DEALER, self.credentials.tls, pins)

        hello = hello_to(self.state.task, task_id=meeting.agreement.task_id)
        ours, limits = self.config.tls.certificate, meeting.lane.limits
        return TupleSource(self.party, channel, hello, dealer_address, self.state.burns, ours, limits)

    async def _rounds(
        self, tuples: TupleSource | NoDealer, runner: RoundRunner, next_round: int, patience: Patience
    ) -> str:
        """Run rounds until the task is over. Return why it is."""
        if (why_over := await asyncio.to_thread(lambda: self.state.why_over)) is not None:
            return why_over  # it was before we met: clients and dealer may have gone
        self.state.require_rounds_left()
        if isinstance(tuples, TupleSource):
            self.telemetry.entered("waiting for the dealer")
        await tuples.wait_until_greeted(patience.left_s)
        patience.ends()  # clients have a time of their own
        await self._wait_for_clients(is_resumed=next_round > 0, n_before=patience.n_clients)
        next_start: float | None = None
        for t in itertools.count(next_round):
            why_over = await asyncio.to_thread(self.state.why_over_at, t)
            await self._until(next_start, is_over=why_over is not None)
            if why_over is not None:
                return why_over
            patience.n_clients = len(self.sessions.connected)
            next_start = time.monotonic() + (self.state.task.round_period_s or 0.0)
            self.drain.between_rounds()  # nothing is awaited before the round is in flight; a drain then waits
            patience.awaits_a_draw()
            found = await runner.run_round(t)
            await (self._publish_evaluation(found) if isinstance(found, EvaluatedRound) else self._publish(found))
        raise AssertionError("rounds end by a reason")

    async def _until(self, start: float | None, *, is_over: bool) -> None:
        """Wait for the time at which the coming round would begin, whoever was drawn for the last one. None: at once.

        is_over: none comes. The goodbye waits all the same, or its time would tell who was in the last round.
        Raises StoppedError when the server is to leave, and the task is not over.
        """
        if start is None or not self.state.task.hides_draws:
            return
        note_if_late(start, self.state.store.task_id)
        if is_over:
            self.drain.ends_the_task()
        while (left_s := start - time.monotonic()) > 0:
            if not is_over:
                self.drain.between_rounds()
            await asyncio.sleep(min(left_s, RETRY_S))

    async def _leave(
        self,
        link: PeerLink,
        tuples: TupleSource | NoDealer,
        guards: tuple[asyncio.Task[None], asyncio.Task[None]],
        goodbye: common_pb2.Goodbye,
    ) -> bool:
        """Say goodbye to the other servers, and wait a while for theirs. Return whether the other aggregator has
        finished."""
        timeout_s = LINGER_S if goodbye.finished else GOODBYE_S
        await link.say_goodbye(goodbye, timeout_s)
        tuples.say_goodbye(goodbye)
        await asyncio.wait(guards, timeout=timeout_s)
        for guard in guards:
            guard.cancel()
        ends = await asyncio.gather(*guards, return_exceptions=True)
        return ends[0] is None

    async def _wait_for_clients(self, *, is_resumed: bool, n_before: int | None) -> None:
        """Wait for all clients, for at most registration_timeout_s.

        In a task that goes on, wait for enough of them, for reconnect_timeout_s if that is longer. Then wait for the
        others, for at most rejoin_timeout_s, and again for enough if some leave meanwhile.

        n_before: connected at the start of the last round of this process. After the loss of another server, as many
        are enough: clients that rounds went on without are not waited for again.
        """
        self.telemetry.entered("registering clients")
        sessions, n_all = self.sessions, len(self.state.task.clients)
        n_enough = self.state.task.min_clients if n_before is None else min(self.state.task.min_clients, n_before)
        timeout_s = max(self.state.task.registration_timeout_s, self.config.reconnect_timeout_s if is_resumed else 0.0)
        ends_at = time.monotonic() + timeout_s
        await self._until_connected(n_enough if is_resumed else n_all, timeout_s)
        while is_resumed:
            await self._until_connected(n_all, self.config.rejoin_timeout_s)
            left_s = ends_at - time.monotonic()
            if len(sessions.connected) >= n_enough or left_s <= 0:
                break
            await self._until_connected(n_enough, left_s)  # some have left again
        if (n := len(sessions.connected)) < n_enough:
            expected = f"min_clients: expected {n_enough} registered within {timeout_s:g} s, found {n}"
            raise TooFewClientsError(expected, sessions.describe_absent())

    async def _until_connected(self, n_clients: int, timeout_s: float) -> None:
        """Return when at least n_clients are connected, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.sessions.wait_for(n_clients)

    async def _publish(self, record: CommittedRound) -> None:
        """Show the new model and the round's record to operators, and write both down for them."""
        parameters = self.state.model.parameters
        self.telemetry.released(record, parameters)
        self.telemetry.charged = self.state.ledger.charged_before(record.number + 1)
        await to_the_end(write_round, self.config.state_dir, record, parameters)
        self.telemetry.committed(record)
        self._log("round.committed", record)
        await self.notify()

    async def _publish_evaluation(self, record: EvaluatedRound) -> None:
        """Show the figures of the model to operators, and write them down for them."""
        self.telemetry.charged = self.state.ledger.charged_before(record.number + 1)
        made_by, figures = self.state.committed[-1], figures_in(self.state.task, record)
        await to_the_end(write_figures, self.config.state_dir / FILE, made_by, figures)
        self.telemetry.evaluated(made_by.number, record, figures)
        self._log("round.evaluated", record, **{name: round(value, 6) for name, value in figures.items()})
        await self.notify()

    def _log(self, event: str, record: CommittedRound | EvaluatedRound, **figures: float) -> None:
        log.info(
            event,
            task=self.state.store.task_id,
            round=record.number,
            chosen=len(record.chosen),
            accepted=len(record.accepted),
            rejected=list(record.rejected),
            missing=list(record.missing),
            **figures,
        )


def public_reason(role: Role, error: Exception) -> str:
    """Return what the other processes, clients too, are told of an error.

    Errors of ours hold public values, but some name files and databases. For those, and for others' errors, the log has
    more.
    """
    if isinstance(error, (StoreError, SetupError)):
        return f"{role} cannot read or write what it must; its log says more"
    if isinstance(error, TooFewClientsError):
        return error.counts
    if isinstance(error, (ServerError, MpcError, DpError)):
        return str(error)
    log.error("aggregator.failed", error=type(error).__name__)
    return f"{role} failed ({type(error).__name__})"


def _after(
    before: Exception | None, error: PeerUnreachableError | ChannelClosedError
) -> PeerUnreachableError | ChannelClosedError:
    """Return the error with what came before it: when time is up, no link may be there to fail for the true reason."""
    if before is None or not isinstance(error, PeerUnreachableError) or str(before) == str(error):
        return error
    return PeerUnreachableError(f"{error}; before that: {before}")


async def _stays(link: PeerLink) -> None:
    """Return when the other aggregator has finished the task. Raises PeerUnreachableError when it left before."""
    goodbye = await link.run()
    if not goodbye.finished:
        raise PeerUnreachableError(f"the other aggregator ended the task: {shown(goodbye.reason, LONGEST_REASON)}")
