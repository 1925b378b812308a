"""The process of one aggregator: what it holds open, and what it tells clients and operators.

    files, lead, port, state, services -> the task (`precad.servers.task.run`) -> goodbye

A process that is started again in its folder goes on with the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from precad.dp.accountants import pld
from precad.mpc.gate.top_bits import Gate
from precad.mpc.gate_names import make_gate
from precad.mpc.kernels import loading
from precad.mpc.local import engines
from precad.mpc.local.step import Engine
from precad.mpc.sharing import Party
from precad.protos.precad.v1 import aggregator_pb2_grpc, common_pb2, control_pb2_grpc, peer_pb2_grpc
from precad.protos.task.model_update import has_diverged
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS
from precad.protos.tls.transport import stop_server
from precad.servers.config import AggregatorConfig
from precad.servers.database.replicas import lead, while_leading
from precad.servers.door import admission
from precad.servers.door.operator import ControlServicer, add_health
from precad.servers.door.revocation import Revocations
from precad.servers.door.servicers import AggregatorServicer, PeerServicer
from precad.servers.door.serving import while_serving
from precad.servers.errors import TaskUnfulfilledError
from precad.servers.links.credentials import Credentials, require_dealer, watched
from precad.servers.operations.opening import operations_port
from precad.servers.operations.snapshot import AggregatorSnapshots
from precad.servers.rounds import memory
from precad.servers.rounds.dealt_form import require_set
from precad.servers.rounds.equipment import SYSTEM_RANDOMNESS, Compute, Randomness
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Aborted, RoundState
from precad.servers.rounds.sum_function import memory_bytes, ready_function
from precad.servers.store.canary_noise import CanaryNoise
from precad.servers.store.counted import mark_counted
from precad.servers.store.folder import ledger_path, load_initial_model, read_earlier, restore_records
from precad.servers.store.state import TaskState
from precad.servers.task.drain import Drain
from precad.servers.task.patience import LINGER_S
from precad.servers.task.run import TaskRun, public_reason
from precad.servers.telemetry import logs
from precad.servers.telemetry.evaluations import restored_evaluations
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.quality import Program, Quality

if TYPE_CHECKING:
    from precad.servers.database.postgres import Session

log = structlog.get_logger(__name__)


class Aggregator:
    """One aggregator for one task. `run` returns when the task is over and raises what ended it early."""

    def __init__(
        self,
        *,
        party: Party,
        task: Task,
        config: AggregatorConfig,
        addresses: tuple[str, str | None],
        measuring: Program | None = None,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        on_state: Callable[[RoundState], None] = lambda state: None,
    ) -> None:
        """addresses: of aggregator B (dialled by A) and of the dealer, if there is one. measuring: how committed models
        are measured, if they are. Raises SetupError."""
        require_dealer(task, config, addresses[1])
        self._function = ready_function(task, config)
        require_set(task)
        self.party: Party = party
        self.task, self.config = task, config
        self._addresses, self._randomness, self._on_state = addresses, randomness, on_state
        self._sessions, self._capacity = (
            Sessions(task.clients),
            memory.capacity_of(config, task, AGGREGATORS[party], function_bytes=memory_bytes(task, self._function)),
        )
        self._telemetry = Telemetry(AGGREGATORS[party])
        self._snapshots = AggregatorSnapshots(
            task, self._telemetry, self._sessions, self._capacity.spool, config.state_dir
        )
        self._revocations = Revocations(config.revoked)
        self._clients = AggregatorServicer(task, self._sessions, self._telemetry, self._revocations)
        self._control = ControlServicer(self._telemetry, lambda: len(self._sessions.connected))
        self._quality = None if measuring is None else Quality(measuring, config.state_dir, self._telemetry)
        self._drain = Drain(AGGREGATORS[party], config.drain_timeout_s, self._telemetry)

    def stop(self) -> None:
        """End the task at the next possible moment (SIGINT)."""
        self._drain.stop()

    def drain(self) -> None:
        """Leave after the round in flight; asked a second time, at the next possible moment (SIGTERM)."""
        self._drain.request(is_busy=self._telemetry.flight is not None)

    async def run(self) -> None:
        """Raises: TlsFileError, TransportError, ServerError, MpcError, DpError."""
        logs.bind(self._telemetry.about)
        credentials = Credentials.read(self.config, self.party)
        initial = load_initial_model(self.config.initial_model, self.task)
        async with AsyncExitStack() as pages:
            async with AsyncExitStack() as stack:
                gate, engine, _ = await asyncio.gather(
                    asyncio.to_thread(_ready_gate, None if self.task.is_proved else self.task.gate),
                    asyncio.to_thread(
                        _ready_engine, self.config.engine, self.config.check_threads, is_proved=self.task.is_proved
                    ),
                    self._open_quality(stack),
                )
                await self._serve(stack, pages, credentials, initial, gate, engine)
            await self._drain.linger(self.config)

    async def _serve(
        self,
        stack: AsyncExitStack,
        pages: AsyncExitStack,
        credentials: Credentials,
        initial: NDArray[np.float32],
        gate: Gate | None,
        engine: Engine,
    ) -> None:
        """Open links and files on `stack`, the operations port on `pages`, and see the task to its end.

        initial: the model that the task starts from, (d,). Raises as `run`.
        """
        session = await self._drain.until_stopped(lead(stack, AGGREGATORS[self.party], self.config))
        server, port = admission.bind(self.config, self.task.clients, self._telemetry, self._revocations)
        admission.reserve_descriptors(self.config.max_connections)
        state = self._open_state(stack, initial, session)
        if self._quality is not None:
            self._quality.begin()
        await pages.enter_async_context(
            operations_port(self.config, self._telemetry, self._snapshots.take, self.config.state_dir)
        )
        mpc_thread = ThreadPoolExecutor(1, thread_name_prefix="mpc")
        stack.callback(mpc_thread.shutdown, wait=False, cancel_futures=True)
        peer_servicer = self._add_services(server, credentials)
        await stack.enter_async_context(watched(self.config.tls.certificate))
        await self._listen(stack, server, port)
        run = TaskRun(
            party=self.party,
            config=self.config,
            peer_address=self._addresses[0],
            dealer_address=self._addresses[1],
            state=state,
            telemetry=self._telemetry,
            sessions=self._sessions,
            capacity=self._capacity,
            peer_servicer=peer_servicer,
            credentials=credentials,
            compute=Compute(gate, engine, mpc_thread, self._noted(state), self._function),
            drain=self._drain,
            on_state=self._note_state,
            notify=self._notify,
        )
        await self._see_through(while_serving(while_leading(run.run(), session), server))
        if self._quality is not None:
            await self._quality.settled()

    def _open_state(self, stack: AsyncExitStack, initial: NDArray[np.float32], session: Session | None) -> TaskState:
        """Open what is durable, and the room for uploads. Raises SetupError, StoreError, DpError."""
        backends = None if session is None else (session.tables("task"), session.tables("tuples"))
        earlier = read_earlier(self.config, AGGREGATORS[self.party])
        state = TaskState.open(stack, self.config.state_dir, self.task, initial, backends, earlier)
        mark_counted(earlier or (), ledger_path(self.config.state_dir))
        if self.config.keep_canary_noise:
            state.canary_noise = CanaryNoise(self.config.state_dir, self.task, AGGREGATORS[self.party].value)
            stack.callback(state.canary_noise.close)
        self._telemetry.cost = state.ledger.cost
        self._telemetry.charged = state.ledger.charged_before(state.store.next_round)
        records = restore_records(self.config.state_dir, state.committed, state.model.parameters)
        self._telemetry.in_task(state.store.task_id, state.model.parameters, records)
        self._telemetry.n_evaluations, self._telemetry.last_commit_at = len(state.evaluated), state.store.last_commit_at
        figures = restored_evaluations(self.config.state_dir, self.task, state.committed, state.evaluated)
        self._telemetry.quality.update(figures)
        stack.enter_context(self._capacity.spool)
        return state

    def _noted(self, state: TaskState) -> Randomness:
        """Return where this server draws from, with its noise noted where an audit reads it."""
        ours = self._randomness
        return ours if state.canary_noise is None else replace(ours, noise=state.canary_noise.drawing(ours.noise))

    async def _open_quality(self, stack: AsyncExitStack) -> None:
        """Start what measures models. Raises SetupError where it refuses its records or the model."""
        if self._quality is not None:
            stack.push_async_callback(self._quality.close)
            await self._quality.open()

    async def _notify(self) -> None:
        """Tell those who watch that there is a new record, and have its model measured."""
        if self._quality is not None and self._telemetry.parameters is not None:
            self._quality.offer(self._telemetry.records[-1], self._telemetry.parameters)
        await self._control.notify()

    async def _listen(self, stack: AsyncExitStack, server: grpc.aio.Server, port: int) -> None:
        """On the main port, until the stack is closed."""
        await server.start()
        self._telemetry.is_listening = True
        stack.push_async_callback(stop_server, server, LINGER_S)  # at once when no call is open
        log.info("aggregator.listening", role=AGGREGATORS[self.party], port=port)
        if not self.task.rules.is_private:
            log.warning("aggregator.not_private", algorithm=self.task.algorithm)  # by its name, and for comparison
        if self.task.krum_rule is not None:
            log.warning("aggregator.releases_updates", why=self.task.krum_rule.released)
        if self.task.accept_weak_wire_form:
            log.warning("aggregator.weak_wire_form", mode=self.task.mode, bounds=self.task.fixed_word)
        if not self.task.checks_norms:
            log.warning("aggregator.no_norm_is_checked", validation=self.task.validation)
        if self.task.sum_function is not None:
            log.warning(
                "aggregator.runs_function", function=self.task.sum_function, factor=self.task.sum_function_factor
            )
        if self.task.servers_follow_protocol:
            log.warning("aggregator.servers_must_follow_protocol", algorithm=self.task.algorithm)

    async def _see_through(self, task: Coroutine[None, None, str]) -> None:
        """To its end, of which clients and operators are told. Raises what ended it early."""
        goodbye = common_pb2.Goodbye(finished=False)
        try:
            with self._drain.excused():
                goodbye.reason = await self._drain.until_stopped(task)
            goodbye.finished = True
        except Exception as error:
            goodbye.reason = public_reason(AGGREGATORS[self.party], error)
            self._note_state(Aborted(self._telemetry.round, goodbye.reason))
            raise
        finally:
            await self._tell_clients_and_operators(goodbye)
        log.info("aggregator.finished", reason=goodbye.reason)
        self._require_a_model(goodbye.reason)

    def _require_a_model(self, reason: str) -> None:
        """Raise TaskUnfulfilledError unless rounds were committed and led to finite numbers."""
        if not self._telemetry.records:
            raise TaskUnfulfilledError(f"the task ended without a round: {reason}")
        assert self._telemetry.parameters is not None  # a round has ended, so there is a model
        if has_diverged(self._telemetry.parameters):
            raise TaskUnfulfilledError(f"the training diverged: the model's squared norm is not finite; {reason}")

    def _add_services(self, server: grpc.aio.Server, credentials: Credentials) -> PeerServicer:
        peer_servicer = PeerServicer(credentials.peer, self._telemetry, lambda: self._telemetry.task_id)
        aggregator_pb2_grpc.add_AggregatorServicer_to_server(self._clients, server)
        control_pb2_grpc.add_ControlServicer_to_server(self._control, server)
        add_health(self._telemetry, server)
        if self.party == 1:
            peer_pb2_grpc.add_PeerServicer_to_server(peer_servicer, server)
        return peer_servicer

    async def _tell_clients_and_operators(self, goodbye: common_pb2.Goodbye) -> None:
        """Send every open stream its last event, and wait a while for them to hang up."""
        self._telemetry.over("finished" if goodbye.finished else "failed", goodbye)
        self._sessions.say_goodbye(goodbye)
        await self._control.notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._sessions.wait_until_gone()
                await self._control.wait_until_unwatched()

    def _note_state(self, state: RoundState) -> None:
        self._telemetry.entered_round(state, self._sessions.connected)
        self._on_state(state)


def _ready_gate(name: str | None) -> Gate | None:
    """Make the gate, if the mode has one, and load the accountants by the same thread: two that import large packages
    wait for each other. Raises GateUnavailableError.
    """
    gate = None if name is None else make_gate(name)
    pld.warm_up()
    from precad.dp.noise import rounded_gaussian  # noqa: F401 - imported here, so that no round waits for it

    return gate


def _ready_engine(name: str, n_threads: int, *, is_proved: bool) -> Engine:
    """Compiled, or with its context on the device, and with what follows it. Raises EngineUnavailableError."""
    engine = engines.make_engine(name, n_threads=n_threads)
    engine.warm_up()
    if is_proved:
        loading.warm_up_proofs()
    else:
        loading.warm_up()
    return engine
