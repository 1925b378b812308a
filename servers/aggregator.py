"""The process of one aggregator: what it holds open, and what it tells clients and operators.

    files, lead, port, state, services -> the task (`precad.servers.task.run`) -> goodbye

A process that is started again in its folder goes on with the task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from precad.dp.noise import rounded_gaussian
from precad.mpc.gates import make_gate
from precad.mpc.kernels import loading
from precad.mpc.local import engines
from precad.mpc.local.step import Engine
from precad.mpc.ring import WORD_BYTES
from precad.mpc.sharing import Party
from precad.protos.precad.v1 import aggregator_pb2_grpc, common_pb2, control_pb2_grpc, peer_pb2_grpc
from precad.protos.task.model_update import has_diverged
from precad.protos.task.task import Task
from precad.protos.tls.transport import bind_server, stop_server
from precad.servers.config import AggregatorConfig
from precad.servers.database.replicas import lead, while_leading
from precad.servers.door.admission import Admission, reserve_descriptors
from precad.servers.door.health import add_health
from precad.servers.door.operator import ControlServicer
from precad.servers.door.revocation import Revocations
from precad.servers.door.servicers import AggregatorServicer, PeerServicer, TaskView
from precad.servers.door.transfers import Transfers
from precad.servers.errors import Limit, TaskUnfulfilledError
from precad.servers.links.credentials import ROLES, Credentials
from precad.servers.operations.port import operations_port
from precad.servers.operations.snapshot import AggregatorSnapshots
from precad.servers.rounds import memory
from precad.servers.rounds.equipment import Compute, NoiseSource
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Aborted, Collecting, RoundState, Selecting
from precad.servers.rounds.uploads import Spool
from precad.servers.store.folder import load_initial_model, restore_records, spool_path
from precad.servers.store.state import TaskState
from precad.servers.supervision import until_stopped
from precad.servers.task.drain import Drain
from precad.servers.task.run import LINGER_S, TaskRun, public_reason
from precad.servers.telemetry import logs
from precad.servers.telemetry.events import Telemetry

if TYPE_CHECKING:
    from precad.servers.database.postgres import Session

log = structlog.get_logger(__name__)

T = TypeVar("T")


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
        self._addresses, self._noise, self._on_state = addresses, noise, on_state
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
        """End the task at the next possible moment (SIGINT)."""
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
            server, port = self._bind()
            state = self._open_state(stack, initial, session)
            await stack.enter_async_context(
                operations_port(self.config, self._telemetry, self._snapshots.take, self.config.state_dir)
            )
            mpc_thread = ThreadPoolExecutor(1, thread_name_prefix="mpc")
            stack.callback(mpc_thread.shutdown, wait=False, cancel_futures=True)
            peer_servicer = self._add_services(server, credentials)
            await self._listen(stack, server, port)
            run = TaskRun(
                party=self.party,
                task=self.task,
                config=self.config,
                addresses=self._addresses,
                state=state,
                view=self._view,
                peer_servicer=peer_servicer,
                credentials=credentials,
                compute=Compute(gate, engine, mpc_thread, self._noise),
                drain=self._drain,
                on_state=self._note_state,
                notify=self._control.notify,
            )
            await self._see_through(while_leading(run.run(), session))

    def _open_state(self, stack: AsyncExitStack, initial: NDArray[np.float32], session: Session | None) -> TaskState:
        """Open what is durable, and the room for uploads. Raises SetupError, StoreError, DpError."""
        backends = None if session is None else (session.tables("task"), session.tables("tuples"))
        state = TaskState.open(stack, self.config.state_dir, self.task, initial, backends)
        self._view.records.extend(restore_records(self.config.state_dir, state.committed, state.model.parameters))
        self._view.task_id, self._view.parameters = state.store.task_id, state.model.parameters
        stack.enter_context(self._view.spool)
        return state

    async def _listen(self, stack: AsyncExitStack, server: grpc.aio.Server, port: int) -> None:
        """On the main port, until the stack is closed."""
        await server.start()
        self._telemetry.is_listening = True
        stack.push_async_callback(stop_server, server, LINGER_S)  # at once when no call is open
        log.info("aggregator.listening", role=ROLES[self.party], port=port)
        if self.task.algorithm == "non-private":
            log.warning("aggregator.not_private", algorithm=self.task.algorithm)  # by its name, and for comparison
        if self.task.accept_weak_wire_form:
            log.warning("aggregator.weak_wire_form", mode=self.task.mode)

    async def _see_through(self, task: Coroutine[None, None, str]) -> None:
        """To its end, of which clients and operators are told. Raises what ended it early."""
        goodbye = common_pb2.Goodbye(finished=False)
        try:
            with self._drain.excused():
                goodbye.reason = await self._until_stopped(task)
            goodbye.finished = True
        except Exception as error:
            goodbye.reason = public_reason(ROLES[self.party], error)
            self._note_state(Aborted(self._view.round, goodbye.reason))
            raise
        finally:
            await self._tell_clients_and_operators(goodbye)
        log.info("aggregator.finished", reason=goodbye.reason)
        self._require_a_model(goodbye.reason)

    def _require_a_model(self, reason: str) -> None:
        """Raise TaskUnfulfilledError unless rounds were committed and led to finite numbers."""
        if not self._view.records:
            raise TaskUnfulfilledError(f"the task ended without a round: {reason}")
        assert self._view.parameters is not None  # a round has ended, so there is a model
        if has_diverged(self._view.parameters):
            raise TaskUnfulfilledError(f"the training diverged: the model's squared norm is not finite; {reason}")

    def _bind(self) -> tuple[grpc.aio.Server, int]:
        """Return the main port, behind admission control. Raises TlsFileError, TransportError."""
        admission = Admission(self.config, self.task.clients, self._telemetry)
        bound = bind_server(
            self.config.listen, self.config.tls, (admission,), max_connections=self.config.max_connections
        )
        reserve_descriptors(self.config.max_connections)
        return bound

    def _add_services(self, server: grpc.aio.Server, credentials: Credentials) -> PeerServicer:
        peer_servicer = PeerServicer(credentials.peer, self._telemetry, lambda: self._view.task_id)
        aggregator_pb2_grpc.add_AggregatorServicer_to_server(AggregatorServicer(self._view), server)
        control_pb2_grpc.add_ControlServicer_to_server(self._control, server)
        add_health(self._telemetry, server)
        if self.party == 1:
            peer_pb2_grpc.add_PeerServicer_to_server(peer_servicer, server)
        return peer_servicer

    async def _until_stopped(self, work: Coroutine[None, None, T]) -> T:
        return await until_stopped(work, self._stop, ROLES[self.party])

    async def _tell_clients_and_operators(self, goodbye: common_pb2.Goodbye) -> None:
        """The last event of every open stream; waits a while for them to hang up."""
        self._view.ended, self._telemetry.is_over = goodbye, True
        self._view.enter("finished" if goodbye.finished else "failed")
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
        self._view.enter(type(state).__name__.lower())
        self._on_state(state)

    def _log_context(self) -> dict[str, object]:
        """Return the context of every line that is logged on our behalf."""
        about: dict[str, object] = {"role": ROLES[self.party]}
        if self._view.task_id:
            about["task"] = self._view.task_id
        if self._telemetry.flight is not None:
            about["round"] = self._telemetry.flight.round
        return about


def _transfers(config: AggregatorConfig, limit: Limit, max_places: int, max_bytes: float = math.inf) -> Transfers:
    return Transfers(
        limit, max_places, max_bytes, min_bytes_s=config.min_transfer_bytes_s, grace_s=config.transfer_grace_s
    )


def _ready_engine(name: str, n_threads: int) -> Engine:
    """Compiled, or with its context on the device, and with what follows it. Raises EngineUnavailableError."""
    engine = engines.make_engine(name, n_threads=n_threads)
    engine.warm_up()
    loading.warm_up()
    return engine
