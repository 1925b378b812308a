"""The process of one aggregator: start, hello, registration, rounds, end.

    bind -> meet the other aggregator -> dealer -> clients -> rounds -> end
            ^                                                  |
            '--- wait for whoever was lost --------------------'

Until both servers agree nothing is computed. When the link, the lane or the dealer is lost, the round in flight is
given up on both servers, and both meet again (`servers.meeting`), as they do after a crash; a process that is started
again in its folder goes on with the task. Whatever else goes wrong ends the task on every process with one clear
reason, and releases nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TypeVar

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from dp import rounded_gaussian
from dp.errors import DpError
from mpc import compiled, engines
from mpc.burning import Burns
from mpc.errors import ChannelClosedError, MpcError
from mpc.gates import make_gate
from mpc.local_step import Engine
from mpc.ring import WORD_BYTES
from mpc.sharing import Party
from mpc.top_bits import Gate
from protos.identity import Role
from protos.precad.v1 import aggregator_pb2_grpc, common_pb2, control_pb2, control_pb2_grpc, peer_pb2_grpc
from protos.task import PROTOCOL_VERSION, Task
from protos.transport import bind_server, dial, stop_server
from servers import memory
from servers.admission import Admission, reserve_descriptors
from servers.config import AggregatorConfig
from servers.credentials import ROLES, Credentials
from servers.drain import Drain
from servers.errors import Limit, PeerUnreachableError, ServerError, SetupError, StoreError, TaskRefusedError
from servers.meeting import Meeting, level, meet
from servers.operations import logs
from servers.operations.health import add_health
from servers.operations.port import operations_port
from servers.operations.snapshot import AggregatorSnapshots
from servers.operations.telemetry import Telemetry
from servers.peer import PeerLink
from servers.replicas import lead, while_leading
from servers.revocation import Revocations
from servers.round import NoiseSource, RoundRunner
from servers.servicers import AggregatorServicer, ControlServicer, PeerServicer, TaskView
from servers.sessions import Sessions
from servers.spool import Spool
from servers.state_dir import load_initial_model, record_of, restore_records, spool_path, write_round
from servers.states import Aborted, Collecting, RoundState, Selecting
from servers.supervision import first_error_or_result, until_stopped
from servers.task_state import TaskState
from servers.transfers import Transfers
from servers.tuple_source import TupleSource

log = structlog.get_logger(__name__)

LINGER_S = 10.0
"""How long the end of a task waits for the others to take note of it."""
GOODBYE_S = 2.0
"""The same when the task has failed, and at the start of a process whose task was over already."""

REJOIN_GRACE_S = 2.0
"""How long a task that goes on waits for those clients that are not back yet, once there are enough."""
RETRY_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Tools:
    """What lasts as long as the process."""

    peer_servicer: PeerServicer
    credentials: Credentials
    gate: Gate
    engine: Engine
    mpc_thread: ThreadPoolExecutor


class _Patience:
    """How long another server may still be away: connect_timeout_s at first, reconnect_timeout_s from each loss on."""

    def __init__(self, connect_timeout_s: float, reconnect_timeout_s: float) -> None:
        self._reconnect_timeout_s = reconnect_timeout_s
        self._deadline: float | None = time.monotonic() + connect_timeout_s
        self._has_met = False

    @property
    def left_s(self) -> float:
        """Seconds."""
        assert self._deadline is not None  # set at the start and at every loss
        return max(0.0, self._deadline - time.monotonic())

    def ends(self) -> None:
        """All are there, and rounds begin."""
        self._deadline, self._has_met = None, True

    def nears_its_end(self) -> None:
        """The task is over, and all that is left is that the other server hears it: one that we have met, within
        LINGER_S; at the start of a process, after a death, it may long have gone."""
        end = time.monotonic() + (LINGER_S if self._has_met else GOODBYE_S)
        self._deadline = end if self._deadline is None else min(self._deadline, end)

    def starts_or_goes_on(self) -> bool:
        """One is lost, or was not found; whether to try again."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._reconnect_timeout_s
        return self.left_s > 0 and (self._has_met or self._reconnect_timeout_s > 0)


class Aggregator:
    """One aggregator for one task. `run` returns when the task is over and raises what ended it early."""

    def __init__(
        self,
        *,
        party: Party,
        task: Task,
        config: AggregatorConfig,
        addresses: tuple[str, str],
        noise: NoiseSource = rounded_gaussian.sample,
        on_state: Callable[[RoundState], None] = lambda state: None,
    ) -> None:
        """addresses: of aggregator B (dialled by A) and of the dealer. Raises SetupError."""
        self.party: Party = party
        self.task, self.config = task, config
        self._peer_address, self._dealer_address = addresses
        self._noise, self._on_state = noise, on_state
        spool = Spool(
            spool_path(config.state_dir),
            slot_bytes=WORD_BYTES * task.dim,
            memory_bytes=memory.of_server(config, task),
            max_memory_upload=config.max_upload_in_memory_mb * memory.MIB,
        )
        self._telemetry = Telemetry(ROLES[party])
        self._view = TaskView(
            task=task,
            party=party,
            sessions=Sessions(task.clients),
            spool=spool,
            telemetry=self._telemetry,
            uploads=_transfers(config, Limit.UPLOADS, config.max_uploads, config.max_upload_mb * memory.MIB),
            downloads=_transfers(config, Limit.DOWNLOADS, config.max_downloads),
            revocations=Revocations(config.revoked),
        )
        self._snapshots = AggregatorSnapshots(self._view, self._telemetry, config.state_dir)
        self._control = ControlServicer(self._view, ROLES[party])
        self._stop = asyncio.Event()
        self._drain = Drain(ROLES[party], config.drain_timeout_s, self.stop)

    def stop(self) -> None:
        """Ends the task at the next possible moment (SIGINT)."""
        self._stop.set()

    def drain(self) -> None:
        """Leaves after the round in flight; asked a second time, at the next possible moment (SIGTERM)."""
        self._telemetry.is_draining = True
        self._drain.request(is_busy=self._telemetry.flight is not None)

    async def run(self) -> None:
        """Raises: TlsFileError, TransportError, ServerError, MpcError, DpError."""
        logs.bind(self._log_context)
        credentials = Credentials.read(self.config, self.party)
        initial = load_initial_model(self.config.initial_model, self.task)
        gate, engine = await asyncio.gather(
            asyncio.to_thread(make_gate, self.task.gate),
            asyncio.to_thread(_ready_engine, self.config.engine, self.config.check_threads),
        )
        async with AsyncExitStack() as stack:
            leading = lead(stack, ROLES[self.party], self.config.database_url, self.config.connect_timeout_s)
            session = await self._until_stopped(leading)
            backends = None if session is None else (session.tables("task"), session.tables("tuples"))
            server, port = self._bind()
            state = TaskState.open(stack, self.config.state_dir, self.task, initial, backends)
            self._view.records.extend(restore_records(self.config.state_dir, state.committed, state.parameters))
            self._view.task_id, self._view.parameters = state.store.task_id, state.parameters
            stack.enter_context(self._view.spool)
            await stack.enter_async_context(
                operations_port(self.config, self._telemetry, self._snapshots.take, self.config.state_dir)
            )
            mpc_thread = ThreadPoolExecutor(1, thread_name_prefix="mpc")
            stack.callback(mpc_thread.shutdown, wait=False, cancel_futures=True)
            peer_servicer = self._add_services(server, credentials)
            await server.start()
            self._telemetry.is_listening = True
            stack.push_async_callback(stop_server, server, LINGER_S)  # at once when no call is open
            log.info("aggregator.listening", role=ROLES[self.party], port=port)
            if self.task.algorithm == "non-private":
                log.warning("aggregator.not_private", algorithm=self.task.algorithm)  # by its name, and for comparison
            tools = _Tools(peer_servicer, credentials, gate, engine, mpc_thread)
            goodbye = common_pb2.Goodbye(finished=False)
            try:
                with self._drain.excused():
                    goodbye.reason = await self._until_stopped(while_leading(self._run_task(state, tools), session))
                goodbye.finished = True
            except Exception as error:
                goodbye.reason = self._public_reason(error)
                self._note_state(Aborted(self._view.round, goodbye.reason))
                raise
            finally:
                await self._tell_clients_and_operators(goodbye)
            log.info("aggregator.finished", reason=goodbye.reason)

    def _bind(self) -> tuple[grpc.aio.Server, int]:
        """The main port, behind admission control. Raises TlsFileError, TransportError."""
        admission = Admission(self.config, self.task.clients, self._telemetry)
        bound = bind_server(
            self.config.listen, self.config.tls, (admission,), max_connections=self.config.max_connections
        )
        reserve_descriptors(self.config.max_connections)
        return bound

    def _add_services(self, server: grpc.aio.Server, credentials: Credentials) -> PeerServicer:
        peer_servicer = PeerServicer(credentials.peer, lambda: self._view.task_id)
        aggregator_pb2_grpc.add_AggregatorServicer_to_server(AggregatorServicer(self._view), server)
        control_pb2_grpc.add_ControlServicer_to_server(self._control, server)
        add_health(self._telemetry, server)
        if self.party == 1:
            peer_pb2_grpc.add_PeerServicer_to_server(peer_servicer, server)
        return peer_servicer

    def _public_reason(self, error: Exception) -> str:
        """What the other processes, clients too, are told. Errors of ours hold public values, but some name files and
        databases; of those, and of others' errors, the log has more."""
        if isinstance(error, (StoreError, SetupError)):
            return f"{ROLES[self.party]} cannot read or write what it must; its log says more"
        if isinstance(error, (ServerError, MpcError, DpError)):
            return str(error)
        log.error("aggregator.failed", error=type(error).__name__)
        return f"{ROLES[self.party]} failed ({type(error).__name__})"

    # -- the task -----------------------------------------------------------------------------------------------------

    async def _run_task(self, state: TaskState, tools: _Tools) -> str:
        """Meets the other server and runs rounds, again and again until the task is over. Returns why it is.

        Raises the first error that waiting does not mend, and PeerUnreachableError when another server was gone for too
        long.
        """
        patience = _Patience(self.config.connect_timeout_s, self.config.reconnect_timeout_s)
        while True:
            self._drain.between_rounds()
            if await asyncio.to_thread(lambda: state.store.is_finished):
                patience.nears_its_end()
            try:
                async with AsyncExitStack() as stack:
                    self._set_state("linking")
                    meeting = await meet(
                        stack,
                        state,
                        self.config,
                        tools.peer_servicer,
                        party=self.party,
                        peer_address=self._peer_address,
                        credentials=tools.credentials,
                        timeout_s=patience.left_s,
                    )
                    return await self._run_together(stack, state, tools, meeting, patience)
            except (PeerUnreachableError, ChannelClosedError) as error:
                await asyncio.to_thread(state.refresh)
                if not patience.starts_or_goes_on():
                    if (why_over := await asyncio.to_thread(lambda: state.why_over)) is not None:
                        log.warning("aggregator.over_alone", reason=str(error))  # the last release is on our disk
                        await asyncio.to_thread(state.store.finished, why_over)
                        return why_over
                    raise
                self._telemetry.interrupted()
                log.warning("aggregator.interrupted", task=state.store.task_id, reason=str(error))
                await asyncio.to_thread(state.store.interrupted, self._view.round, str(error))
                await asyncio.sleep(RETRY_S)

    async def _run_together(
        self, stack: AsyncExitStack, state: TaskState, tools: _Tools, meeting: Meeting, patience: _Patience
    ) -> str:
        """From a meeting to the end of the task, or to the loss of another server. Returns why the task is over.

        The other servers are told how it ended while their links still stand; of a task that is over, once that is on
        our disk, so that a server that hears it may forget us, and one that was lost before is waited for.
        """
        link, task_id = meeting.link, meeting.agreement.task_id
        tuples = self._tuple_source(tools.credentials, task_id, state.burns)
        guards = (asyncio.create_task(stays(link)), asyncio.create_task(tuples.run()))
        goodbye = common_pb2.Goodbye(finished=False)
        try:
            level_now = asyncio.get_running_loop().run_in_executor(tools.mpc_thread, level, state, meeting)
            await first_error_or_result(_awaited(level_now), guards)
            await self._show_taken_over(state)
            runner = self._runner(state, tools, meeting, tuples)
            stack.callback(runner.close)
            goodbye.reason = await first_error_or_result(
                self._rounds(state, tuples, runner, meeting.agreement.next_round, patience), guards
            )
            await asyncio.to_thread(state.store.finished, goodbye.reason)
            goodbye.finished = True
        except Exception as error:
            goodbye.reason = self._public_reason(error)
            raise
        finally:
            self._view.relay = None
            has_peer_finished = await self._leave(link, tuples, guards, goodbye)
        if not has_peer_finished:
            raise PeerUnreachableError("the other aggregator left before it said that it had finished")
        return goodbye.reason

    def _runner(self, state: TaskState, tools: _Tools, meeting: Meeting, tuples: TupleSource) -> RoundRunner:
        self._view.task_id, self._view.parameters = meeting.agreement.task_id, state.parameters
        self._view.relay = meeting.link.relay if self.party == 0 else None
        return RoundRunner(
            task=self.task,
            task_id=meeting.agreement.task_id,
            parameters=state.parameters,
            n_committed=len(state.committed),
            link=meeting.link,
            lane=meeting.lane,
            tuples=tuples,
            sessions=self._view.sessions,
            ledger=state.ledger,
            store=state.store,
            checkpoints=state.checkpoints,
            gate=tools.gate,
            engine=tools.engine,
            spool=self._view.spool,
            mpc_thread=tools.mpc_thread,
            noise=self._noise,
            on_state=self._note_state,
        )

    async def _show_taken_over(self, state: TaskState) -> None:
        """A round that the other server had committed and we had not, to operators."""
        for round in state.committed[len(self._view.records) :]:
            await self._publish(state.store.task_id, state.parameters, record_of(round))

    def _tuple_source(self, credentials: Credentials, task_id: str, burns: Burns) -> TupleSource:
        def channel() -> grpc.aio.Channel:
            return dial(self._dealer_address, Role.DEALER, credentials.tls, credentials.dealer)

        hello = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=self.task.digest(), task=task_id)
        return TupleSource(self.party, channel, hello, self._dealer_address, burns)

    async def _rounds(
        self, state: TaskState, tuples: TupleSource, runner: RoundRunner, next_round: int, patience: _Patience
    ) -> str:
        """Runs rounds until the task is over. Returns why it is."""
        if (why_over := await asyncio.to_thread(lambda: state.why_over)) is not None:
            return why_over  # it was before we met: clients and dealer may have gone
        self._set_state("waiting for the dealer")
        await tuples.wait_until_greeted(patience.left_s)
        await self._wait_for_clients(is_resumed=next_round > 0)
        patience.ends()
        for t in itertools.count(next_round):
            self._drain.between_rounds()
            if runner.n_committed >= self.task.rounds:
                break
            if await asyncio.to_thread(state.ledger.would_exceed, tuple(self.task.clients)):
                return f"the privacy budget is spent after {runner.n_committed} rounds"
            self._view.bytes_uploaded = 0
            record = await runner.run_round(t)
            record.bytes_by_link["from_clients"] = self._view.bytes_uploaded
            await self._publish(runner.task_id, runner.parameters, record)
        return f"{self.task.rounds} rounds done"

    async def _leave(
        self,
        link: PeerLink,
        tuples: TupleSource,
        guards: tuple[asyncio.Task[None], asyncio.Task[None]],
        goodbye: common_pb2.Goodbye,
    ) -> bool:
        """Says goodbye to the other servers and waits a while for theirs. Whether the other aggregator has finished."""
        timeout_s = LINGER_S if goodbye.finished else GOODBYE_S
        await link.say_goodbye(goodbye, timeout_s)
        tuples.say_goodbye(goodbye)
        await asyncio.wait(guards, timeout=timeout_s)
        for guard in guards:
            guard.cancel()
        ends = await asyncio.gather(*guards, return_exceptions=True)
        return ends[0] is None

    async def _wait_for_clients(self, *, is_resumed: bool) -> None:
        """Until all are connected, or registration_timeout_s have passed; of a task that goes on, until there are
        enough and the others had a moment, for reconnect_timeout_s if that is longer."""
        self._set_state("registering clients")
        sessions, n_all = self._view.sessions, len(self.task.clients)
        timeout_s = max(self.task.registration_timeout_s, self.config.reconnect_timeout_s if is_resumed else 0.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await sessions.wait_for(self.task.min_clients if is_resumed else n_all)
        if is_resumed:
            with suppress(TimeoutError):
                async with asyncio.timeout(REJOIN_GRACE_S):
                    await sessions.wait_for(n_all)
        if (n := len(sessions.connected)) < self.task.min_clients:
            raise TaskRefusedError(
                f"min_clients: expected {self.task.min_clients} registered within {timeout_s:g} s, got {n}"
            )

    async def _publish(self, task_id: str, parameters: NDArray[np.float32], record: control_pb2.RoundRecord) -> None:
        """Shows the new model and the round's record to operators, and writes both down for them."""
        self._view.parameters = parameters
        self._view.records.append(record)
        await asyncio.to_thread(write_round, self.config.state_dir, record, parameters)
        self._telemetry.committed(record)
        log.info(
            "round.committed",
            task=task_id,
            round=record.round,
            chosen=len(record.chosen),
            accepted=len(record.accepted),
            rejected=list(record.rejected),
            missing=list(record.missing),
        )
        await self._control.notify()

    async def _until_stopped(self, work: Coroutine[None, None, T]) -> T:
        return await until_stopped(work, self._stop, ROLES[self.party])

    async def _tell_clients_and_operators(self, goodbye: common_pb2.Goodbye) -> None:
        """The last event of every open stream; waits a while for them to hang up."""
        self._view.ended, self._telemetry.is_over = goodbye, True
        self._set_state("finished" if goodbye.finished else "failed")
        self._view.sessions.say_goodbye(goodbye)
        await self._control.notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._view.sessions.wait_until_gone()
                await self._control.wait_until_unwatched()

    def _note_state(self, state: RoundState) -> None:
        if isinstance(state, Selecting):
            self._view.round = state.round
        if isinstance(state, Collecting):
            self._view.intake, self._view.model_of_round = state.intake, state.model
        else:
            self._view.intake = None
        self._telemetry.entered_round(state, self._view.sessions.connected)
        self._set_state(type(state).__name__.lower())
        self._on_state(state)

    def _log_context(self) -> dict[str, object]:
        """Of every line that is logged on our behalf."""
        about: dict[str, object] = {"role": ROLES[self.party]}
        if self._view.task_id:
            about["task"] = self._view.task_id
        if self._telemetry.flight is not None:
            about["round"] = self._telemetry.flight.round
        return about

    def _set_state(self, state: str) -> None:
        self._view.state = state
        self._telemetry.entered(state)


def _transfers(config: AggregatorConfig, limit: Limit, max_places: int, max_bytes: float = math.inf) -> Transfers:
    return Transfers(
        limit, max_places, max_bytes, min_bytes_s=config.min_transfer_bytes_s, grace_s=config.transfer_grace_s
    )


async def _awaited(future: asyncio.Future[T]) -> T:
    return await future


async def stays(link: PeerLink) -> None:
    """Returns when the other aggregator has finished the task. Raises PeerUnreachableError when it left before."""
    goodbye = await link.run()
    if not goodbye.finished:
        raise PeerUnreachableError(f"the other aggregator ended the task: {goodbye.reason}")


def _ready_engine(name: str, n_threads: int) -> Engine:
    """Compiled, or with its context on the device, and with what follows it. Raises EngineUnavailableError."""
    engine = engines.make_engine(name, n_threads=n_threads)
    engine.warm_up()
    compiled.warm_up()
    return engine
