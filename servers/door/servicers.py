"""gRPC in, values out: the services of an aggregator for clients and for the other aggregator.

The operator's is `precad.servers.door.operator`. Whoever calls is authenticated first (`precad.protos.tls.identity`),
and every request is checked against what it may be. An error becomes a status by the one table in
`precad.servers.errors`.

Discussion: the services run on gRPC's asyncio server. Ten thousand clients that wait for their next invitation are ten
thousand idle streams on one thread. A thread pool would need a thread for each. What computes (MPC, noise, the ledger)
runs in threads of its own, and MPC in exactly one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import TypeVar, cast

import grpc
import structlog
from google.protobuf.message import DecodeError

from precad.mpc.errors import MalformedMessageError
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2, peer_pb2, peer_pb2_grpc
from precad.protos.task.task import Task
from precad.protos.task.task_fields import differences
from precad.protos.tls.files import Pins
from precad.protos.tls.identity import Role, require_pinned, require_role
from precad.protos.tls.renewable import Source
from precad.servers.door.calls import Context, refusing
from precad.servers.door.revocation import Revocations
from precad.servers.errors import (
    AlreadyConnectedError,
    NotEnrolledError,
    ParametersDifferError,
    PeerUnreachableError,
    RefusalReason,
    SubmissionRefusedError,
    TaskRefusedError,
    WrongStateError,
)
from precad.servers.links.peer import PeerLink
from precad.servers.rounds.receiving import Receiving
from precad.servers.rounds.sessions import Sessions, events_of
from precad.servers.telemetry.events import Telemetry

log = structlog.get_logger(__name__)

HEADER_TIMEOUT_S = 10.0
"""How long a submission may take to say what it is."""
MAX_INBOX = 4
"""Messages of the other aggregator that wait to be taken in: 1 MiB each at most, before they are parsed."""


def check_hello(hello: common_pb2.Hello, task: Task) -> None:
    """Raises ParametersDifferError, naming what differs."""
    if hello.protocol_version != task.protocol_version:
        raise ParametersDifferError(
            f"protocol_version: expected {task.protocol_version!r}, found {hello.protocol_version[:40]!r}"
        )
    if hello.config_digest != task.digest():
        where = "the [task] sections of the two configurations differ"
        for number, found in enumerate(differences(task, hello.task_fields)):
            where += f"{',' if number else ' in'} {found.field}: expected {found.ours}, found {found.theirs}"
        raise ParametersDifferError(
            f"config_digest: expected {task.digest().hex()[:16]}..., found {hello.config_digest.hex()[:16]}...; {where}"
        )


class AggregatorServicer(aggregator_pb2_grpc.AggregatorServicer):
    """For clients."""

    def __init__(self, task: Task, sessions: Sessions, telemetry: Telemetry, revocations: Revocations) -> None:
        self._task, self._sessions, self._telemetry, self._revocations = task, sessions, telemetry, revocations

    def _client(self, context: Context) -> str:
        """Return the name of the client that calls. Raises IdentityError, RevokedError."""
        name = require_role(context, Role.CLIENT).name
        self._revocations.require_valid(context)
        return name

    async def Join(self, request: aggregator_pb2.JoinRequest, context: Context) -> None:  # noqa: N802
        """Register the caller and stream its invitations.

        Each is written: gRPC would keep one that is yielded, with its seed, until the next, rounds later (S4).
        """
        sessions, telemetry = self._sessions, self._telemetry
        async with refusing("Join", context, telemetry):
            client = self._client(context)
            check_hello(request.hello, self._task)
            request.Clear()  # else the stream keeps it for as long as it is open
            queue = sessions.enter(client)
            if telemetry.ended is not None:  # it was away when the others were told
                sessions.send(client, aggregator_pb2.ClientEvent(goodbye=telemetry.ended))
        try:
            log.info("client.joined", client=client)
            await sessions.notify()
            await context.write(aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome()))
            async for event in events_of(queue):
                async with refusing("Join", context, telemetry):
                    self._revocations.require_valid(context)
                await context.write(event)
                del event
        finally:
            sessions.leave(client)
            log.info("client.left", client=client)
            telemetry.left(client)
            await asyncio.shield(sessions.notify())

    async def GetModel(self, request: aggregator_pb2.ModelRequest, context: Context) -> None:  # noqa: N802
        """Send the model of the round in progress."""
        async with refusing("GetModel", context, self._telemetry):
            client, collecting = self._client(context), self._telemetry.collecting
            if collecting is None or request.round != collecting.round:
                raise WrongStateError(f"round {request.round} is not open")
            intake, model = collecting.intake, collecting.model
            del collecting  # it holds the round's tuples, which the lock takes away
            if not intake.is_chosen(client):
                raise NotEnrolledError(f"client {client!r} is not in round {request.round}")
            async with intake.download(client, len(model)) as place:
                for piece in convert.growing_pieces(model):
                    await context.write(common_pb2.Chunk(data=piece))
                    place.n_moved += len(piece)

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[aggregator_pb2.SubmitPart], context: Context
    ) -> aggregator_pb2.SubmitReply:
        """Take one upload: binding and bytes, never more of them than this server expects."""
        async with refusing("Submit", context, self._telemetry):
            client = self._client(context)
            with self._telemetry.submission(client):
                await self._take(client, request_iterator)
        return aggregator_pb2.SubmitReply()

    async def _take(self, client: str, parts: AsyncIterator[aggregator_pb2.SubmitPart]) -> None:
        if (collecting := self._telemetry.collecting) is None:
            raise WrongStateError("no round is open for submissions")
        await _receive(collecting.intake, client, parts)

    async def Prove(  # noqa: N802
        self, request_iterator: AsyncIterator[aggregator_pb2.ProvePart], context: Context
    ) -> aggregator_pb2.ProveReply:
        """Take one proof, of an upload that both servers have locked: mode `proved`."""
        async with refusing("Prove", context, self._telemetry):
            client = self._client(context)
            with self._telemetry.submission(client):
                if (proving := self._telemetry.proving) is None:
                    raise WrongStateError("no round is open for proofs")
                await _receive(proving.proofs, client, request_iterator)
        return aggregator_pb2.ProveReply()


Part = TypeVar("Part", aggregator_pb2.SubmitPart, aggregator_pb2.ProvePart)


async def _receive(intake: Receiving, client: str, requests: AsyncIterator[Part]) -> None:
    """Take one upload or proof, part by part. Raises SubmissionRefusedError, OverloadedError.

    gRPC's stream of a call that is refused would keep the last part, in a cycle with its error (S4). So it is closed.
    """
    parts = cast("AsyncGenerator[Part, None]", aiter(requests))
    async with aclosing(parts), intake.upload(client) as upload:
        header = await _header(parts)
        upload.begin(header.binding, header.statement, header.salt)
        upload.write(header.chunk.data)
        async for part in parts:
            if part.HasField("binding") or not part.HasField("chunk"):
                raise SubmissionRefusedError(RefusalReason.MALFORMED, "a submission has one binding")
            data = part.chunk.data  # once: every reading copies it
            if not data:
                raise SubmissionRefusedError(RefusalReason.MALFORMED, "a chunk has bytes")
            upload.write(data)


async def _header(parts: AsyncIterator[Part]) -> Part:
    """Return the first message of a submission. Raises SubmissionRefusedError."""
    try:
        async with asyncio.timeout(HEADER_TIMEOUT_S):
            header = await anext(aiter(parts), None)
    except TimeoutError:
        raise SubmissionRefusedError(RefusalReason.MALFORMED, "no binding came") from None
    if header is None or not header.HasField("binding"):
        raise SubmissionRefusedError(RefusalReason.MALFORMED, "a submission starts with its binding")
    return header


class PeerServicer(peer_pb2_grpc.PeerServicer):
    """For server A, at server B. One link at a time, from the holder of the pinned certificate.

    A newer link of the same task takes the older one's place: its holder has lost that one, which we may not know yet.
    """

    def __init__(self, pinned: Source[Pins], telemetry: Telemetry, task_id: Callable[[], str] = lambda: "") -> None:
        """task_id: of the task that both servers are in, empty before they have met."""
        self._pinned, self._telemetry, self._task_id = pinned, telemetry, task_id
        self._linked: asyncio.Queue[tuple[PeerLink, common_pb2.Hello]] = asyncio.Queue()
        self._released: asyncio.Event | None = None

    async def wait_for_peer(self, ours: common_pb2.Hello, timeout_s: float) -> tuple[PeerLink, common_pb2.Hello]:
        """Return the link that server A opened, greeted with our hello, and its hello. Raises PeerUnreachableError."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    link, theirs = await self._linked.get()
                    with suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                        await link.greet(ours)
                        return link, theirs
        except TimeoutError:
            raise PeerUnreachableError(f"no aggregator A linked with us within {round(timeout_s, 1):g} s") from None

    def release(self) -> None:
        """Hang up, if there is a link."""
        if self._released is not None:
            self._released.set()

    async def Link(  # noqa: N802
        self, request_iterator: AsyncIterator[peer_pb2.PeerMessage], context: Context
    ) -> None:
        """Hand the stream to the aggregator, which compares parameters, and stay until it lets go."""
        async with refusing("Link", context, self._telemetry):
            require_role(context, Role.AGGREGATOR_A)
            require_pinned(context, self._pinned.load().fingerprints)
            first = await anext(aiter(request_iterator), None)
            if first is None or first.WhichOneof("message") != "hello":
                raise MalformedMessageError("the link starts with a hello")
            if self._released is not None and first.hello.task != self._task_id():
                raise AlreadyConnectedError("this server is linked with another aggregator A")
        self.release()
        released = self._released = asyncio.Event()
        inbox = _Inbox()
        while not self._linked.empty():  # of links that were released by now
            self._linked.get_nowait()
        self._linked.put_nowait((PeerLink(1, context.write, inbox.receive), first.hello))
        pump = asyncio.ensure_future(inbox.fill(request_iterator, self._telemetry))
        try:
            await released.wait()
        finally:
            pump.cancel()
            inbox.end()
            if self._released is released:
                self._released = None


class _Inbox:
    """Messages that came over a stream and are not taken in yet.

    While there is no room, nobody reads the stream, and the flow control of HTTP/2 makes its sender wait.
    """

    def __init__(self) -> None:
        self._items: asyncio.Queue[peer_pb2.PeerMessage | TaskRefusedError | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_INBOX)

    async def fill(self, messages: AsyncIterator[peer_pb2.PeerMessage], telemetry: Telemetry) -> None:
        """Move a stream in, and its end too, however it comes."""
        try:
            await self._room.acquire()
            async for message in messages:
                self._items.put_nowait(message)
                await self._room.acquire()
        except DecodeError:
            telemetry.undecodable("Link")
            self._items.put_nowait(TaskRefusedError(f"{Role.AGGREGATOR_A} sent bytes that are no PeerMessage"))
        finally:
            self.end()

    def end(self) -> None:
        """Note that nothing more comes."""
        self._items.put_nowait(None)

    async def receive(self) -> peer_pb2.PeerMessage | None:
        """See `precad.servers.links.peer.Receive`."""
        item = await self._items.get()
        if isinstance(item, TaskRefusedError):
            raise item
        self._room.release()
        return item
