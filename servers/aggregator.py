"""The process of one aggregator: start, hello, registration, rounds, end.

    bind -> link with the other aggregator -> agree on parameters and the task's id -> dealer -> clients -> rounds

Until both servers agree nothing is computed; whatever goes wrong afterwards ends the task on every process with one
clear reason, and releases nothing more. Recovery after a crash is not here yet: a restarted aggregator begins a new
task, with a new id, new tuples and a new ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import structlog
from google.protobuf.json_format import MessageToJson
from numpy.typing import NDArray

from dp import rounded_gaussian
from dp.accounting import View, round_event
from dp.ledger import Ledger
from mpc.errors import MpcError, PeerMismatchError
from mpc.gates import Gate, make_gate
from mpc.joint_coin import digest
from mpc.sharing import Party
from protos import convert
from protos.identity import Role, fingerprint
from protos.precad.v1 import (
    aggregator_pb2_grpc,
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    peer_pb2,
    peer_pb2_grpc,
)
from protos.task import PROTOCOL_VERSION, Task
from protos.transport import bind_server, dial, explain, read_pinned
from servers.config import AggregatorConfig, require_own_role
from servers.errors import PeerUnreachableError, ServerError, StoppedError, TaskRefusedError
from servers.peer import PeerLink, Receive
from servers.round import NoiseSource, RoundRunner
from servers.servicers import AggregatorServicer, ControlServicer, PeerServicer, TaskView
from servers.sessions import Sessions
from servers.states import Aborted, Collecting, RoundState, Selecting
from servers.tuple_source import TupleSource

log = structlog.get_logger(__name__)

ROLES: tuple[Role, Role] = (Role.AGGREGATOR_A, Role.AGGREGATOR_B)
LINGER_S = 10.0
"""How long the end of a task waits for clients and operators to take note of it."""
RETRY_S = 0.2

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
        """addresses: of aggregator B (dialled by A) and of the dealer."""
        self.party: Party = party
        self.task, self.config = task, config
        self._peer_address, self._dealer_address = addresses
        self._noise, self._on_state = noise, on_state
        self._view = TaskView(task=task, party=party, sessions=Sessions(task.clients))
        self._control = ControlServicer(self._view, ROLES[party])
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ends the task at the next possible moment (SIGTERM, SIGINT)."""
        self._stop.set()

    async def run(self) -> None:
        """Raises: ConfigFileError, TlsFileError, TransportError, ServerError, MpcError, DpError."""
        require_own_role(self.config.tls, ROLES[self.party])
        initial = load_initial_model(self.config.initial_model, self.task.dim)
        gate = await asyncio.to_thread(make_gate, self.task.gate)
        async with AsyncExitStack() as stack:
            ledger = stack.enter_context(open_ledger(self.config.state_dir, self.task))
            server, port = bind_server(self.config.listen, self.config.tls)
            peer_servicer = self._add_services(server)
            await server.start()
            stack.push_async_callback(server.stop, 1.0)
            log.info("aggregator.listening", role=ROLES[self.party], port=port)
            goodbye = common_pb2.Goodbye(finished=False, reason="an aggregator failed")
            try:
                link, task_id = await self._until_stopped(self._start(stack, initial, peer_servicer))
                goodbye.reason = await self._run_task(stack, link, task_id, initial, gate, ledger)
                goodbye.finished = True
            except (ServerError, MpcError) as error:
                goodbye.reason = str(error)
                self._note_state(Aborted(self._view.round, str(error)))
                raise
            finally:
                await self._tell_clients_and_operators(goodbye)

    def _add_services(self, server: grpc.aio.Server) -> PeerServicer:
        pinned = read_pinned(self.config.peer_certificate, ROLES[1 - self.party])
        peer_servicer = PeerServicer(fingerprint(pinned))
        aggregator_pb2_grpc.add_AggregatorServicer_to_server(AggregatorServicer(self._view), server)
        control_pb2_grpc.add_ControlServicer_to_server(self._control, server)
        if self.party == 1:
            peer_pb2_grpc.add_PeerServicer_to_server(peer_servicer, server)
        return peer_servicer

    # -- before the task ----------------------------------------------------------------------------------------------

    async def _start(
        self, stack: AsyncExitStack, initial: NDArray[np.float32], servicer: PeerServicer
    ) -> tuple[PeerLink, str]:
        """The link and the task's id, once both servers hold the same version, parameters and initial model.

        Raises: PeerUnreachableError, PeerMismatchError, TaskRefusedError.
        """
        ours = common_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            config_digest=self.task.digest(),
            nonce=os.urandom(16),
            model_digest=convert.sha256(convert.model_to_bytes(initial)),
        )
        self._set_state("linking")
        if self.party == 0:
            channel = dial(self._peer_address, Role.AGGREGATOR_B, self.config.tls, self.config.peer_certificate)
            stack.push_async_callback(channel.close)
            link, theirs = await dial_peer(channel, ours, self._peer_address, self.config.connect_timeout_s)
        else:
            link, theirs = await self._await_peer(servicer)
            stack.callback(servicer.released.set)
            await link.greet(ours)
        for name in ("protocol_version", "config_digest", "model_digest"):
            our_value, their_value = getattr(ours, name), getattr(theirs, name)
            if our_value != their_value:
                raise PeerMismatchError(name, ours=_printable(our_value), peers=_printable(their_value))
        nonces = (ours.nonce, theirs.nonce) if self.party == 0 else (theirs.nonce, ours.nonce)
        return link, f"{self.task.name}-{digest(b'task id', *nonces).hex()[:16]}"

    async def _await_peer(self, servicer: PeerServicer) -> tuple[PeerLink, common_pb2.Hello]:
        try:
            async with asyncio.timeout(self.config.connect_timeout_s):
                return await servicer.linked
        except TimeoutError:
            raise PeerUnreachableError(
                f"no aggregator A linked with us within {self.config.connect_timeout_s:g} s"
            ) from None

    # -- the task -----------------------------------------------------------------------------------------------------

    async def _run_task(
        self,
        stack: AsyncExitStack,
        link: PeerLink,
        task_id: str,
        initial: NDArray[np.float32],
        gate: Gate,
        ledger: Ledger,
    ) -> str:
        """Rounds until the last one, the budget, or the first error. Returns why the task is over.

        The other servers are told how it ended while their links still stand.
        """
        tuples = self._tuple_source(stack, task_id)
        mpc_thread = ThreadPoolExecutor(1, thread_name_prefix="mpc")
        stack.callback(mpc_thread.shutdown, wait=False, cancel_futures=True)
        runner = RoundRunner(
            task=self.task,
            task_id=task_id,
            parameters=initial,
            link=link,
            tuples=tuples,
            sessions=self._view.sessions,
            ledger=ledger,
            gate=gate,
            mpc_thread=mpc_thread,
            noise=self._noise,
            on_state=self._note_state,
        )
        self._view.task_id, self._view.parameters = task_id, initial
        self._view.relay = link.relay if self.party == 0 else None
        peer, dealer = asyncio.create_task(stays(link)), asyncio.create_task(tuples.run())
        goodbye = common_pb2.Goodbye(finished=False, reason=f"{ROLES[self.party]} failed")
        try:
            goodbye.reason = await first_error_or_result(
                self._until_stopped(self._rounds(tuples, runner, ledger)), guards=(peer, dealer)
            )
            goodbye.finished = True
        except (ServerError, MpcError) as error:
            goodbye.reason = str(error)
            raise
        finally:
            await link.say_goodbye(goodbye)
            tuples.say_goodbye(goodbye)
            await asyncio.wait((peer, dealer), timeout=LINGER_S if goodbye.finished else 2.0)
            for guard in (peer, dealer):
                guard.cancel()
            await asyncio.gather(peer, dealer, return_exceptions=True)
        return goodbye.reason

    def _tuple_source(self, stack: AsyncExitStack, task_id: str) -> TupleSource:
        channel = dial(self._dealer_address, Role.DEALER, self.config.tls, self.config.dealer_certificate)
        stack.push_async_callback(channel.close)
        hello = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=self.task.digest(), task=task_id)
        return TupleSource(self.party, channel, hello, self._dealer_address)

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
            record.bytes_sent["clients"] = self._view.bytes_uploaded
            await self._publish(runner, record)
        return f"{self.task.rounds} rounds done"

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
        """The work's result. Raises StoppedError when the operator stops this process first."""
        return await first_error_or_result(work, guards=(asyncio.create_task(self._stopped()),))

    async def _stopped(self) -> None:
        await self._stop.wait()
        raise StoppedError(f"{ROLES[self.party]} was stopped by its operator")

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
        self._view.intake = state.intake if isinstance(state, Collecting) else None
        self._set_state(type(state).__name__.lower())
        self._on_state(state)

    def _set_state(self, state: str) -> None:
        self._view.state = state


async def first_error_or_result(work: Coroutine[None, None, T], guards: Sequence[asyncio.Task[None]]) -> T:
    """The result of `work`, unless a guard raises first: then that error. A guard that ends in peace is no end.

    When several have failed at once, an error that says who is gone wins over its consequences.
    """
    main = asyncio.create_task(work)
    waiting: set[asyncio.Task[Any]] = {main, *guards}
    try:
        while not main.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for task in done if (error := task.exception()) is not None]
            if errors:
                await asyncio.sleep(0.05)
                errors += [error for task in waiting if task.done() and (error := task.exception()) is not None]
                raise min(errors, key=lambda error: not isinstance(error, ServerError))
        return main.result()
    finally:
        main.cancel()
        await asyncio.gather(main, return_exceptions=True)


async def stays(link: PeerLink) -> None:
    """Returns when the other aggregator has finished the task. Raises PeerUnreachableError when it left before."""
    goodbye = await link.run()
    if not goodbye.finished:
        raise PeerUnreachableError(f"the other aggregator ended the task: {goodbye.reason}")


async def dial_peer(
    channel: grpc.aio.Channel, hello: common_pb2.Hello, address: str, timeout_s: float
) -> tuple[PeerLink, common_pb2.Hello]:
    """The link to aggregator B and its hello. Tries again while nobody answers.

    Raises: PeerUnreachableError, TaskRefusedError when B refuses us.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        call = peer_pb2_grpc.PeerStub(channel).Link()
        try:
            await call.write(peer_pb2.PeerMessage(hello=hello))
            first = await call.read()
            if first is not grpc.aio.EOF and first.WhichOneof("message") == "hello":
                return PeerLink(0, call.write, _reader(call)), first.hello
            code, why = await call.code(), await call.details()
        except grpc.aio.AioRpcError as error:
            code, why = error.code(), explain(error, Role.AGGREGATOR_B, address)
        if code is not grpc.StatusCode.UNAVAILABLE:
            raise TaskRefusedError(f"aggregator B refused the link: {why}")
        if asyncio.get_running_loop().time() > deadline:
            raise PeerUnreachableError(f"no link within {timeout_s:g} s: {why}")
        await asyncio.sleep(RETRY_S)


def _reader(call: grpc.aio.StreamStreamCall[Any, Any]) -> Receive:
    """The call's messages, and None at its end, however it ends."""

    async def receive() -> peer_pb2.PeerMessage | None:
        try:
            message: peer_pb2.PeerMessage | Any = await call.read()
        except grpc.aio.AioRpcError:
            return None
        return None if message is grpc.aio.EOF else message

    return receive


def open_ledger(state_dir: Path, task: Task) -> Ledger:
    """A new ledger for both views. Raises TaskRefusedError when `state_dir` holds one already.

    (A second task on the same records has to be accounted together with the first: that is for the operator to decide.)
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / "ledger.jsonl"
    if path.exists():
        raise TaskRefusedError(f"state_dir: expected no ledger of an earlier task, found {path}")
    events = {
        view: round_event(
            view,
            record_sampling_rate=task.record_rate,
            noise_multiplier=task.noise_multiplier,
            record_clip=task.record_clip,
            dim=task.dim,
            frac_bits=task.frac_bits,
        )
        for view in View
    }
    limits = {
        View.ONE_SERVER: task.epsilon_budget_one_server,
        View.CLIENTS_ONLY: task.epsilon_budget_clients_only,
    }
    budgets = {view: limit for view, limit in limits.items() if limit is not None}
    return Ledger(path, events=events, delta=task.delta, budgets=budgets)


def load_initial_model(path: Path, dim: int) -> NDArray[np.float32]:
    """A flat float32 vector. Raises TaskRefusedError naming what was expected."""
    try:
        parameters = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise TaskRefusedError(f"initial_model: expected a .npy file, found {path}: {error}") from None
    if parameters.dtype != np.float32 or parameters.shape != (dim,) or not np.isfinite(parameters).all():
        raise TaskRefusedError(
            f"initial_model: expected {dim} finite float32 values, "
            f"found {parameters.dtype} {parameters.shape} in {path}"
        )
    return np.asarray(parameters, dtype=np.float32)


def write_round(state_dir: Path, record: control_pb2.RoundRecord, parameters: NDArray[np.float32]) -> None:
    """Appends the record to rounds.jsonl and replaces model.npy as a whole."""
    temporary = state_dir / "model.npy.tmp"
    with temporary.open("wb") as file:
        np.save(file, parameters)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(state_dir / "model.npy")
    with (state_dir / "rounds.jsonl").open("a") as lines:
        lines.write(MessageToJson(record, preserving_proto_field_name=True, indent=None) + "\n")


def _printable(value: bytes | str) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else value[:40]
