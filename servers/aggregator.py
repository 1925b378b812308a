"""The process of one aggregator: start, hello, registration, rounds, end.

    bind -> link and lane to the other aggregator -> same parameters, a task id -> dealer -> clients -> rounds

Until both servers agree nothing is computed; whatever goes wrong afterwards ends the task on every process with one
clear reason, and releases nothing more. Recovery after a crash is not here yet: a restarted aggregator begins a new
task, with a new id, new tuples and a new ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from dp import rounded_gaussian
from dp.errors import DpError
from dp.ledger import Ledger
from mpc import engines
from mpc.burning import Burns
from mpc.errors import MpcError, PeerMismatchError
from mpc.gates import make_gate
from mpc.joint_coin import digest
from mpc.local_step import Engine
from mpc.ring import WORD_BYTES
from mpc.sharing import Party
from mpc.top_bits import Gate
from protos import convert
from protos.identity import Role, fingerprint
from protos.precad.v1 import (
    aggregator_pb2_grpc,
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    peer_pb2_grpc,
)
from protos.task import PROTOCOL_VERSION, Task
from protos.transport import bind_server, dial, read_pinned, with_port
from servers import memory
from servers.config import AggregatorConfig, require_own_role
from servers.errors import PeerUnreachableError, ServerError, TaskRefusedError
from servers.lane import Lane, LaneListener, open_lane
from servers.peer import PeerLink, dial_peer
from servers.round import NoiseSource, RoundRunner
from servers.servicers import AggregatorServicer, ControlServicer, PeerServicer, TaskView
from servers.sessions import Sessions
from servers.spool import Spool
from servers.state_dir import (
    load_initial_model,
    open_ledger,
    open_tuple_ledger,
    require_unused,
    spool_path,
    write_round,
)
from servers.states import Aborted, Collecting, RoundState, Selecting
from servers.supervision import first_error_or_result, until_stopped
from servers.tuple_source import TupleSource

log = structlog.get_logger(__name__)

ROLES: tuple[Role, Role] = (Role.AGGREGATOR_A, Role.AGGREGATOR_B)
LINGER_S = 10.0
"""How long the end of a task waits for the others to take note of it."""
GOODBYE_S = 2.0
"""The same when the task has failed."""

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
        self._peer_address, self._dealer_address = addresses
        self._noise, self._on_state = noise, on_state
        spool = Spool(
            spool_path(config.state_dir),
            slot_bytes=WORD_BYTES * task.dim,
            memory_bytes=memory.for_uploads(config.memory_budget_mb, task.dim),
            max_memory_upload=config.max_upload_in_memory_mb * memory.MIB,
        )
        self._view = TaskView(task=task, party=party, sessions=Sessions(task.clients), spool=spool)
        self._control = ControlServicer(self._view, ROLES[party])
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ends the task at the next possible moment (SIGTERM, SIGINT)."""
        self._stop.set()

    async def run(self) -> None:
        """Raises: TlsFileError, TransportError, ServerError, MpcError, DpError."""
        peer_pin = self._check_files()
        initial = load_initial_model(self.config.initial_model, self.task.dim)
        require_unused(self.config.state_dir)
        gate, engine = await asyncio.gather(
            asyncio.to_thread(make_gate, self.task.gate), asyncio.to_thread(_ready_engine, self.config.engine)
        )
        async with AsyncExitStack() as stack:
            stack.enter_context(self._view.spool)
            server, port = bind_server(self.config.listen, self.config.tls)
            listener = self._lane_listener(stack)
            peer_servicer = self._add_services(server, peer_pin)
            await server.start()
            stack.push_async_callback(server.stop, LINGER_S)  # returns at once when no call is open
            log.info("aggregator.listening", role=ROLES[self.party], port=port)
            goodbye = common_pb2.Goodbye(finished=False)
            try:
                link, lane, task_id = await self._until_stopped(self._start(stack, initial, peer_servicer, listener))
                goodbye.reason = await self._run_task(stack, link, lane, task_id, initial, gate, engine)
                goodbye.finished = True
            except Exception as error:
                goodbye.reason = self._public_reason(error)
                self._note_state(Aborted(self._view.round, goodbye.reason))
                raise
            finally:
                await self._tell_clients_and_operators(goodbye)

    def _check_files(self) -> str:
        """Every certificate that will be needed is there and fits. The fingerprint of the other aggregator's."""
        require_own_role(self.config.tls, ROLES[self.party])
        read_pinned(self.config.dealer_certificate, Role.DEALER)
        return fingerprint(read_pinned(self.config.peer_certificate, ROLES[1 - self.party]))

    def _add_services(self, server: grpc.aio.Server, peer_pin: str) -> PeerServicer:
        peer_servicer = PeerServicer(peer_pin)
        aggregator_pb2_grpc.add_AggregatorServicer_to_server(AggregatorServicer(self._view), server)
        control_pb2_grpc.add_ControlServicer_to_server(self._control, server)
        if self.party == 1:
            peer_pb2_grpc.add_PeerServicer_to_server(peer_servicer, server)
        return peer_servicer

    def _public_reason(self, error: Exception) -> str:
        """What the other processes are told. Errors of ours hold public values only; of others, the log has more."""
        if isinstance(error, (ServerError, MpcError, DpError)):
            return str(error)
        log.error("aggregator.failed", error=type(error).__name__)
        return f"{ROLES[self.party]} failed ({type(error).__name__})"

    # -- before the task ----------------------------------------------------------------------------------------------

    def _lane_listener(self, stack: AsyncExitStack) -> LaneListener | None:
        """Server B's, before it says where."""
        if self.party == 0:
            return None
        address = self.config.lane_listen or with_port(self.config.listen, 0)
        listener = LaneListener(address, self.config.tls, self.config.peer_certificate)
        stack.callback(listener.close)
        return listener

    async def _start(
        self,
        stack: AsyncExitStack,
        initial: NDArray[np.float32],
        servicer: PeerServicer,
        listener: LaneListener | None,
    ) -> tuple[PeerLink, Lane, str]:
        """Link, lane and the task's id, once both servers hold the same version, parameters and initial model.

        Raises: PeerUnreachableError, PeerMismatchError, TaskRefusedError.
        """
        ours = common_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            config_digest=self.task.digest(),
            nonce=os.urandom(16),
            model_digest=convert.sha256(convert.model_to_bytes(initial)),
            lane_port=0 if listener is None else listener.port,
        )
        self._set_state("linking")
        if self.party == 0:
            channel = dial(self._peer_address, Role.AGGREGATOR_B, self.config.tls, self.config.peer_certificate)
            stack.push_async_callback(channel.close)
            link, theirs = await dial_peer(channel, ours, self._peer_address, self.config.connect_timeout_s)
        else:
            stack.callback(servicer.released.set)
            link, theirs = await servicer.wait_for_peer(ours, self.config.connect_timeout_s)
        for name in ("protocol_version", "config_digest", "model_digest"):
            our_value, their_value = getattr(ours, name), getattr(theirs, name)
            if our_value != their_value:
                raise PeerMismatchError(name, ours=_printable(our_value), peers=_printable(their_value))
        nonces = (ours.nonce, theirs.nonce) if self.party == 0 else (theirs.nonce, ours.nonce)
        task_id = f"{self.task.name}-{digest(b'task id', *nonces).hex()[:16]}"
        if listener is None:
            pinned, timeout_s = self.config.peer_certificate, self.config.connect_timeout_s
            lane = await open_lane(self._peer_address, theirs.lane_port, self.config.tls, pinned, timeout_s)
        else:
            lane = await listener.accept(self.config.connect_timeout_s)
        stack.callback(lane.close)
        return link, lane, task_id

    # -- the task -----------------------------------------------------------------------------------------------------

    async def _run_task(
        self,
        stack: AsyncExitStack,
        link: PeerLink,
        lane: Lane,
        task_id: str,
        initial: NDArray[np.float32],
        gate: Gate,
        engine: Engine,
    ) -> str:
        """Rounds until the last one, the budget, or the first error. Returns why the task is over.

        The other servers are told how it ended while their links still stand.
        """
        ledger = stack.enter_context(open_ledger(self.config.state_dir, self.task))
        burns = stack.enter_context(open_tuple_ledger(self.config.state_dir))
        tuples = self._tuple_source(stack, task_id, burns)
        mpc_thread = ThreadPoolExecutor(1, thread_name_prefix="mpc")
        stack.callback(mpc_thread.shutdown, wait=False, cancel_futures=True)
        runner = RoundRunner(
            task=self.task,
            task_id=task_id,
            parameters=initial,
            link=link,
            lane=lane,
            tuples=tuples,
            sessions=self._view.sessions,
            ledger=ledger,
            gate=gate,
            engine=engine,
            spool=self._view.spool,
            mpc_thread=mpc_thread,
            noise=self._noise,
            on_state=self._note_state,
        )
        stack.callback(runner.close)
        self._view.task_id, self._view.parameters = task_id, initial
        self._view.relay = link.relay if self.party == 0 else None
        guards = (asyncio.create_task(stays(link)), asyncio.create_task(tuples.run()))
        goodbye = common_pb2.Goodbye(finished=False)
        try:
            goodbye.reason = await first_error_or_result(
                self._until_stopped(self._rounds(tuples, runner, ledger)), guards
            )
            goodbye.finished = True
        except Exception as error:
            goodbye.reason = self._public_reason(error)
            raise
        finally:
            await self._leave(link, tuples, guards, goodbye)
        return goodbye.reason

    def _tuple_source(self, stack: AsyncExitStack, task_id: str, burns: Burns) -> TupleSource:
        channel = dial(self._dealer_address, Role.DEALER, self.config.tls, self.config.dealer_certificate)
        stack.push_async_callback(channel.close)
        hello = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=self.task.digest(), task=task_id)
        return TupleSource(self.party, channel, hello, self._dealer_address, burns)

    async def _rounds(self, tuples: TupleSource, runner: RoundRunner, ledger: Ledger) -> str:
        """Runs the task's rounds. Returns why it is over."""
        self._set_state("waiting for the dealer")
        await tuples.wait_until_greeted(self.config.connect_timeout_s)
        await self._wait_for_clients()
        for t in range(self.task.rounds):
            if await asyncio.to_thread(ledger.would_exceed, tuple(self.task.clients)):
                return f"the privacy budget is spent after {t} rounds"
            self._view.bytes_uploaded = 0
            record = await runner.run_round(t)
            record.bytes_by_link["from_clients"] = self._view.bytes_uploaded
            await self._publish(runner, record)
        return f"{self.task.rounds} rounds done"

    async def _leave(
        self,
        link: PeerLink,
        tuples: TupleSource,
        guards: tuple[asyncio.Task[None], asyncio.Task[None]],
        goodbye: common_pb2.Goodbye,
    ) -> None:
        """Says goodbye to the other servers and waits a while for theirs."""
        timeout_s = LINGER_S if goodbye.finished else GOODBYE_S
        await link.say_goodbye(goodbye, timeout_s)
        tuples.say_goodbye(goodbye)
        await asyncio.wait(guards, timeout=timeout_s)
        for guard in guards:
            guard.cancel()
        await asyncio.gather(*guards, return_exceptions=True)

    async def _wait_for_clients(self) -> None:
        self._set_state("registering clients")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.task.registration_timeout_s):
                await self._view.sessions.wait_for(len(self.task.clients))
        if (n := len(self._view.sessions.connected)) < self.task.min_clients:
            raise TaskRefusedError(
                f"min_clients: expected {self.task.min_clients} registered within "
                f"{self.task.registration_timeout_s:g} s, got {n}"
            )

    async def _publish(self, runner: RoundRunner, record: control_pb2.RoundRecord) -> None:
        """Shows the new model and the round's record to operators, and writes both down."""
        self._view.parameters = runner.parameters
        self._view.records.append(record)
        await asyncio.to_thread(write_round, self.config.state_dir, record, runner.parameters)
        log.info(
            "round.committed",
            task=runner.task_id,
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
        self._view.ended = goodbye
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
        self._set_state(type(state).__name__.lower())
        self._on_state(state)

    def _set_state(self, state: str) -> None:
        self._view.state = state


async def stays(link: PeerLink) -> None:
    """Returns when the other aggregator has finished the task. Raises PeerUnreachableError when it left before."""
    goodbye = await link.run()
    if not goodbye.finished:
        raise PeerUnreachableError(f"the other aggregator ended the task: {goodbye.reason}")


def _ready_engine(name: str) -> Engine:
    """Compiled, or with its context on the device. Raises EngineUnavailableError."""
    engine = engines.make_engine(name)
    engine.warm_up()
    return engine


def _printable(value: bytes | str) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else value[:40]
