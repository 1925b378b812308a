"""The dealer's process: deals one batch of correlated randomness per round to both aggregators, and to nobody else.

A batch is made when the first server asks for it, from fresh seeds of the operating system. The other server must ask
for the same shape. Each part leaves once, and that is on disk before it does (`precad.servers.store.dealt_parts`). No
seed is kept afterwards. An aggregator that is lost may come back; the servers then continue with a round that nothing
was dealt for. The process needs neither CrypTen nor torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog

from precad.mpc.errors import MalformedMessageError, PeerMismatchError
from precad.mpc.norm_bound import DEFAULT_ROWS
from precad.mpc.prg import RandomBytes
from precad.mpc.sharing import Party
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt
from precad.protos.messages import convert
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.protos.precad.v1 import common_pb2, control_pb2_grpc, dealer_pb2, dealer_pb2_grpc
from precad.protos.task.task import Task
from precad.protos.tls.files import Pins, renewable_pins
from precad.protos.tls.identity import AGGREGATORS, Role, require_pinned, require_role
from precad.protos.tls.renewable import Source
from precad.protos.tls.transport import stop_server
from precad.servers.config import DealerConfig, require_own_role
from precad.servers.database.replicas import lead, while_leading
from precad.servers.door.admission import bind
from precad.servers.door.calls import Context, refusing
from precad.servers.door.operator import StatusServicer, add_health
from precad.servers.door.servicers import check_hello
from precad.servers.door.serving import while_serving
from precad.servers.errors import PeerUnreachableError, StoreError
from precad.servers.links.credentials import watched
from precad.servers.operations.opening import operations_port
from precad.servers.operations.snapshot import of_dealer
from precad.servers.private_files import private_folder
from precad.servers.rounds.equipment import SYSTEM_RANDOMNESS, Randomness
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.store.standing import MAX_ROUND, require_task_id
from precad.servers.task.drain import Drain
from precad.servers.telemetry import logs
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import Status

log = structlog.get_logger(__name__)

MAX_PRODUCTS, MAX_TRIM_WORDS = 1 << 30, 1 << 30
PRODUCTS_OF_A_WORD = 16
"""Words of products of a compared word, at most: either gate uses 9, with the bits that are made additive."""
LEDGER_NAME = "dealt.sqlite"
MAX_WAITING = 64
"""Batches that one server has and the other has not asked for yet."""


@dataclass(slots=True)
class _Batch:
    """A batch of which at least one part has not left yet."""

    dealt: asyncio.Task[tuple[Dealt, Dealt]]
    asked: set[Party] = field(default_factory=set)


class Dealer:
    """Deals for one task. `run` returns when both aggregators have finished it."""

    def __init__(self, *, task: Task, config: DealerConfig, randomness: Randomness = SYSTEM_RANDOMNESS) -> None:
        self.task, self.config, self._randomness = task, config, randomness
        self._telemetry = Telemetry(Role.DEALER)
        self._drain = Drain("the dealer", config.drain_timeout_s, self._telemetry)
        self._servicer: DealerServicer | None = None

    def stop(self) -> None:
        """End at the next possible moment (SIGINT)."""
        self._drain.stop()

    def drain(self) -> None:
        """End when both aggregators have left; a second time, at the next possible moment (SIGTERM)."""
        self._drain.request(is_busy=self._n_connected > 0)

    async def run(self) -> None:
        """Raises: TlsFileError, TransportError, SetupError, StoreError, PeerUnreachableError when an aggregator is
        lost, StoppedError."""
        logs.bind(self._telemetry.about)
        require_own_role(self.config.tls, Role.DEALER)
        pinned = (self.config.aggregator_a_certificate, self.config.aggregator_b_certificate)
        pins = tuple(renewable_pins(path, role) for path, role in zip(pinned, AGGREGATORS, strict=True))
        async with AsyncExitStack() as pages:
            async with AsyncExitStack() as stack:
                await self._serve(stack, pages, pins)
            await self._drain.linger(self.config)

    async def _serve(self, stack: AsyncExitStack, pages: AsyncExitStack, pins: tuple[Source[Pins], ...]) -> None:
        """Open the link and the record on `stack`, the operations port on `pages`, and deal. Raises as `run`."""
        session = await self._drain.until_stopped(lead(stack, Role.DEALER, self.config))
        await pages.enter_async_context(operations_port(self.config, self._telemetry, self._snapshot))
        server, port = bind(self.config, (), self._telemetry)
        private_folder(self.config.state_dir)
        ledger = stack.enter_context(
            DealLedger(self.config.state_dir / LEDGER_NAME if session is None else session.tables("deals"))
        )
        servicer = self._servicer = DealerServicer(
            self.task, pins, ledger, self._telemetry, self._note_departure, self._randomness.tuples
        )
        dealer_pb2_grpc.add_DealerServicer_to_server(servicer, server)
        control_pb2_grpc.add_ControlServicer_to_server(
            StatusServicer(self._telemetry, lambda: self._n_connected), server
        )
        add_health(self._telemetry, server)
        await stack.enter_async_context(watched(self.config.tls.certificate))
        await server.start()
        self._telemetry.is_listening = True
        self._telemetry.entered("waiting for the aggregators")
        stack.push_async_callback(stop_server, server, 1.0)
        stack.callback(servicer.hang_up)
        log.info("dealer.listening", port=port)
        goodbye = common_pb2.Goodbye(finished=False)
        stack.callback(self._telemetry.over, "ended", goodbye)
        over = servicer.deal_until_over(self.config.connect_timeout_s, self.config.reconnect_timeout_s)
        with self._drain.excused():
            await self._drain.until_stopped(while_serving(while_leading(over, session), server))
        goodbye.finished, goodbye.reason = True, servicer.why_finished
        log.info("dealer.finished")

    def _note_departure(self) -> None:
        """An aggregator has left, for now or for good. Who wants to leave after both need not wait any longer."""
        if self._drain.is_requested and self._n_connected == 0:
            self.stop()

    def _snapshot(self) -> Status:
        n_waiting = 0 if self._servicer is None else self._servicer.n_waiting
        return of_dealer(self._telemetry, n_connected=self._n_connected, n_waiting=n_waiting)

    @property
    def _n_connected(self) -> int:
        return 0 if self._servicer is None else self._servicer.n_connected


class DealerServicer(dealer_pb2_grpc.DealerServicer):
    """One stream per aggregator."""

    def __init__(
        self,
        task: Task,
        pins: tuple[Source[Pins], ...],
        ledger: DealLedger,
        telemetry: Telemetry,
        on_departure: Callable[[], None] = lambda: None,
        random_bytes: RandomBytes = SYSTEM_RANDOMNESS.tuples,
    ) -> None:
        """on_departure: told when a stream has ended. random_bytes: of the seeds that are dealt."""
        self.telemetry, self._on_departure, self._random_bytes = telemetry, on_departure, random_bytes
        self._task, self._pins, self._ledger = task, pins, ledger
        self._streams: dict[Party, asyncio.Event] = {}
        self._finished: set[Party] = set()
        self.why_finished = ""
        """In the words of the aggregator that finished last."""
        self._batches: dict[int, _Batch] = {}
        self._changed = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._latest: dict[Party, int] = {}
        self._why_left: dict[Party, str] = {}
        self._cannot_record: StoreError | None = None

    @property
    def n_connected(self) -> int:
        """Count the aggregators with an open stream."""
        return len(self._streams)

    @property
    def n_waiting(self) -> int:
        """Count the batches of which one server has asked for its part."""
        return len(self._batches)

    async def deal_until_over(self, connect_timeout_s: float, reconnect_timeout_s: float) -> None:
        """Return when both aggregators have finished the task.

        Raises PeerUnreachableError when one does not come, or is lost and does not come back in time. Raises StoreError
        when a part could not be recorded, and so did not leave.
        """
        await self._until_all_here(connect_timeout_s)
        while len(self._finished) < 2:
            if self._is_one_missing():
                await self._until_all_here(reconnect_timeout_s)
            else:
                await self._news()

    async def _news(self) -> None:
        """Return when an aggregator has come or gone. Raises StoreError."""
        self._changed.clear()
        if self._cannot_record is None:
            await self._changed.wait()
        if self._cannot_record is not None:
            raise self._cannot_record

    def _is_one_missing(self) -> bool:
        return len(self._streams.keys() | self._finished) < 2

    async def _until_all_here(self, timeout_s: float) -> None:
        """Both are connected, or have finished. Raises PeerUnreachableError."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_one_missing():
                    await self._news()
        except TimeoutError:
            raise PeerUnreachableError(self._who_is_missing(timeout_s)) from None

    def _who_is_missing(self, timeout_s: float) -> str:
        """Say what became of each aggregator, and whose log says why: ours too for one that came to nothing here."""
        found, logs = [], []
        parties: tuple[Party, Party] = (0, 1)
        for party in parties:
            role = AGGREGATORS[party]
            if party in self._streams or party in self._finished:
                found.append(f"{role} {'is here' if party in self._streams else 'has finished'}")
                continue
            found.append(f"{role} {self._why_left.get(party, 'never came')}")
            logs.append(f"{role}'s log" + ("" if party in self._why_left else " and call.refused in ours"))
        return f"waited {timeout_s:g} s for both aggregators: {'; '.join(found)} (see {', '.join(logs)})"

    def hang_up(self) -> None:
        """End the open streams. (A stream that a stopping server cancels leaves a traceback of gRPC's in the log.)"""
        self._hung_up.set()

    async def _requests(
        self, requests: AsyncIterator[dealer_pb2.DealRequest], released: asyncio.Event
    ) -> AsyncGenerator[dealer_pb2.DealRequest, None]:
        """Until the stream ends, a newer one takes its place, or we hang up. Raises DecodeError."""
        waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(event.wait()) for event in (self._hung_up, released)}
        try:
            while True:
                coming = asyncio.ensure_future(anext(requests, None))
                waiting.add(coming)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    return
                waiting.discard(coming)
                if (request := coming.result()) is None:
                    return
                yield request
        finally:
            for one in waiting:
                one.cancel()

    async def Deal(  # noqa: N802
        self, request_iterator: AsyncIterator[dealer_pb2.DealRequest], context: Context
    ) -> AsyncIterator[dealer_pb2.DealReply]:
        """Stream a hello, then a batch per request, until the goodbye."""
        async with refusing("Deal", context, self.telemetry):
            party = self._authenticate(context)
            requests = aiter(request_iterator)
            first = await anext(requests, None)
            if first is None or first.WhichOneof("request") != "hello":
                raise MalformedMessageError("the stream starts with a hello")
            released = self._join(party, first.hello)
        goodbye: common_pb2.Goodbye | None = None
        try:
            yield dealer_pb2.DealReply(hello=first.hello)
            async with aclosing(self._requests(requests, released)) as coming:
                while True:
                    async with refusing("Deal", context, self.telemetry):
                        if (request := await anext(coming, None)) is None:
                            return
                        if request.WhichOneof("request") == "goodbye":
                            goodbye = request.goodbye
                            return
                        dealt = await self._part(party, request)
                    for reply in convert.dealt_to_messages(dealt, request.batch.round):
                        yield reply
        finally:
            self._leave(party, released, goodbye)

    def _authenticate(self, context: Context) -> Party:
        role = require_role(context, *AGGREGATORS).role
        party: Party = 0 if role is Role.AGGREGATOR_A else 1
        require_pinned(context, self._pins[party].load().fingerprints)
        return party

    def _join(self, party: Party, hello: common_pb2.Hello) -> asyncio.Event:
        """A stream begins; the event that ends it. A newer one takes the place of an older, which was lost."""
        check_hello(hello, self._task)
        require_task_id(hello.task, self._task.name)
        if self.telemetry.task_id not in ("", hello.task):
            raise PeerMismatchError("task", ours=self.telemetry.task_id, peers=hello.task)
        self.telemetry.task_id = hello.task
        if (older := self._streams.get(party)) is not None:
            older.set()
        released = self._streams[party] = asyncio.Event()
        self._finished.discard(party)
        self._changed.set()
        self.telemetry.entered("dealing" if len(self._streams) == 2 else "waiting for the aggregators")
        log.info("dealer.joined", role=AGGREGATORS[party], task=self.telemetry.task_id)
        return released

    async def _part(self, party: Party, request: dealer_pb2.DealRequest) -> Dealt:
        """This server's part of the batch it asks for, once it is on disk that it leaves."""
        if request.WhichOneof("request") != "batch":
            raise MalformedMessageError("expected a batch request or a goodbye")
        of_round = self._task.evaluation_round
        if request.batch.dim not in (self._task.dim, self._task.dim if of_round is None else of_round.dim):
            raise PeerMismatchError("dim", ours=self._task.dim, peers=request.batch.dim)
        enrolled = len(self._task.clients)
        if request.batch.n_clients > enrolled:  # a deal takes time for each of them
            raise MalformedMessageError(
                f"clients of a batch: expected at most {enrolled}, found {request.batch.n_clients}"
            )
        if request.batch.round > MAX_ROUND:
            raise MalformedMessageError(f"round of a batch: expected at most {MAX_ROUND}, found {request.batch.round}")
        self._require_tuples_of_a_round(request.batch)
        shape = convert.batch_shape(self.telemetry.task_id, request.batch)
        if shape.has_ring_products and self._task.sum_function is None:
            raise PeerMismatchError("blocks", ours="none of kind PRODUCT or SQUARE", peers="such a block")
        most = max(most_products(one, len(shape.clients)) for one in self._rounds_of(shape.dim))
        if shape.n_products > most:
            raise MalformedMessageError(f"products of a batch: expected at most {most}, found {shape.n_products}")
        if shape.n_trim_words > MAX_TRIM_WORDS:
            raise MalformedMessageError(
                f"trim words of a batch: expected at most {MAX_TRIM_WORDS}, found {shape.n_trim_words}"
            )
        if shape.round not in self._batches and len(self._batches) >= MAX_WAITING:
            raise MalformedMessageError(f"the other server is more than {MAX_WAITING} batches behind")
        await self._record(party, shape)
        self._latest[party] = shape.round
        self._forget_before(min(self._latest.values()) if len(self._latest) == 2 else 0)
        batch = self._batches.get(shape.round)
        if batch is None:
            making = asyncio.create_task(asyncio.to_thread(deal, shape, self._random_bytes))
            batch = self._batches[shape.round] = _Batch(making)
        batch.asked.add(party)
        if len(batch.asked) == 2:
            del self._batches[shape.round]
        part = (await asyncio.shield(batch.dealt))[party]  # a server that hangs up does not take it from the other
        self.telemetry.batch_dealt(AGGREGATORS[party])
        return part

    def _require_tuples_of_a_round(self, asked: dealer_pb2.BatchRequest) -> None:
        """Refuse tuples that no round of so many coordinates has a use for. Raises PeerMismatchError."""
        rounds = self._rounds_of(asked.dim)
        if asked.trims not in {one.rules.keeps_some for one in rounds}:
            raise PeerMismatchError("trims", ours=self._task.rules.keeps_some, peers=asked.trims)
        if asked.pairs not in {one.rules.selects for one in rounds}:
            raise PeerMismatchError("pairs", ours=self._task.rules.selects, peers=asked.pairs)
        if (theirs := list(asked.layer_sizes)) not in [one.layer_sizes for one in rounds]:
            our_sizes, their_sizes = _told_apart(rounds[0].layer_sizes, theirs)
            raise PeerMismatchError("layer_sizes", ours=our_sizes, peers=their_sizes)

    def _rounds_of(self, dim: int) -> list[Task]:
        """Return the kinds of rounds of so many coordinates: the training's, or an evaluation's."""
        return [one for one in (self._task, self._task.evaluation_round) if one is not None and one.dim == dim]

    async def _record(self, party: Party, shape: BatchShape) -> None:
        """This part leaves. What cannot be recorded ends the dealer. Raises what `DealLedger.record` raises."""
        try:
            await asyncio.to_thread(self._ledger.record, party, shape)
        except StoreError as error:
            self._cannot_record = error
            self._changed.set()
            raise

    def _forget_before(self, round: int) -> None:
        """Both servers are past these rounds: the other half of what one of them has is never asked for."""
        for earlier in [number for number in self._batches if number < round]:
            del self._batches[earlier]

    def _leave(self, party: Party, released: asyncio.Event, goodbye: common_pb2.Goodbye | None) -> None:
        if self._streams.get(party) is not released:
            return  # a newer stream has taken its place
        del self._streams[party]
        if goodbye is not None and goodbye.finished:
            self._finished.add(party)
            self.why_finished = shown(goodbye.reason, LONGEST_REASON)
        else:
            reason = None if goodbye is None else shown(goodbye.reason, LONGEST_REASON)
            why = "is gone, without a goodbye" if reason is None else f"ended the task: {reason}"
            self._why_left[party] = why
            log.warning("dealer.lost", role=AGGREGATORS[party], reason=why)
            self.telemetry.entered("waiting for the aggregators")
        self._changed.set()
        self._on_departure()


def most_products(task: Task, n_clients: int) -> int:
    """Bound the words of products that a round of so many clients has a use for; with a function of the sum, roughly.

    A deal takes memory and time for each of them, and one server alone has asked for it.
    """
    if task.sum_function is not None:
        return MAX_PRODUCTS  # only the servers know the function
    n_words = n_clients * (DEFAULT_ROWS + 1 + len(task.layer_sizes) + len(task.half_spaces))
    if task.rules.keeps_some:
        n_words += n_clients * (n_clients + 4)  # pairs, then thresholds and ranks
    if task.rules.selects:
        n_words += n_clients**3  # two distances from each
    return min(MAX_PRODUCTS, PRODUCTS_OF_A_WORD * n_words)


def _told_apart(ours: list[int], theirs: list[int]) -> tuple[str, str]:
    """Say of two lists of layers' sizes how many these are, or the first that differs."""
    if len(ours) != len(theirs):
        return f"{len(ours)} layers", f"{len(theirs)} layers"
    layer, sizes = next((i, pair) for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    return f"{sizes[0]} coordinates in layer {layer}", f"{sizes[1]} coordinates in layer {layer}"
