"""The link from an aggregator to the dealer: one stream for the whole task, one batch of tuples per round."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from precad.mpc.errors import MalformedMessageError
from precad.mpc.sharing import Party
from precad.mpc.tuples.burning import Burns
from precad.mpc.tuples.held import BatchShape, Dealt, ServerTuples
from precad.protos.messages import convert
from precad.protos.messages.spoken import LONGEST_REFUSAL, shown
from precad.protos.messages.undecoded import decoded, stub_of_bytes
from precad.protos.precad.v1 import common_pb2, dealer_pb2
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import explain, require_not_cancelled
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from precad.servers.links.peer import WORTH_ASKING_AGAIN
from precad.servers.links.step_limits import NO_LIMITS, StepLimits

_SERVICE = dealer_pb2.DESCRIPTOR.services_by_name["Dealer"]
RETRY_S = 0.2
MOST_WAITING = 64
"""Replies that wait for whoever asked; further ones stay in the connection."""


class NoDealer:
    """In the place of a `TupleSource` in mode `proved`: nobody to wait for, and nobody to lose."""

    bytes_received = 0

    def __init__(self) -> None:
        self._is_left = asyncio.Event()

    async def run(self) -> None:
        """Return once we leave."""
        await self._is_left.wait()

    async def wait_until_greeted(self, timeout_s: float) -> None:
        """Return at once."""

    def say_goodbye(self, goodbye: common_pb2.Goodbye) -> None:
        """Do nothing: there is nobody to say it to."""
        self._is_left.set()

    async def batch(self, shape: BatchShape) -> ServerTuples:
        """Raise MalformedMessageError: no round of this mode asks for tuples."""
        raise MalformedMessageError(f"round {shape.round}: expected no request for tuples where there is no dealer")


class TupleSource:
    """One aggregator's end. `run` must be running for anything to arrive."""

    def __init__(
        self,
        party: Party,
        dial: Callable[[], grpc.aio.Channel],
        hello: common_pb2.Hello,
        address: str,
        burns: Burns,
        certificate: Path | None = None,
        limits: StepLimits = NO_LIMITS,
    ) -> None:
        """dial: a new channel to the dealer, for each attempt. burns: where the tuples are recorded as used.

        certificate: the file of ours. limits: how long tuples may take.
        """
        self._party: Party = party
        self._address, self._burns, self._certificate = address, burns, certificate
        self._hello, self._limits = hello, limits
        self._requests: asyncio.Queue[dealer_pb2.DealRequest | None] = asyncio.Queue()
        self._replies: asyncio.Queue[dealer_pb2.DealReply | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(MOST_WAITING)
        self._turn = asyncio.Lock()
        self._dial = dial
        self._greeted = asyncio.Event()
        self._is_leaving = self._said_goodbye = False
        self._why_not = "nothing heard"
        self.bytes_received = 0

    async def run(self) -> None:
        """Take in replies until the dealer has taken our goodbye, or we leave and it is gone.

        Raises PeerUnreachableError, TaskRefusedError.
        """
        try:
            while not await self._stream():  # noqa: ASYNC110 - nobody can signal that a dealer came up
                await asyncio.sleep(RETRY_S)
        finally:
            self._replies.put_nowait(None)

    async def _stream(self) -> bool:
        """Make one call; False when nobody answered yet, so that it may be tried again."""
        try:
            async with self._dial() as channel:
                async for data in stub_of_bytes(channel, _SERVICE).Deal(self._outgoing()):
                    reply = decoded(dealer_pb2.DealReply, data, "the dealer")
                    self.bytes_received += len(data)
                    if reply.WhichOneof("reply") == "hello":
                        self._greeted.set()
                    elif not self._is_leaving:
                        await self._room.acquire()  # else a dealer that is not asked fills this server's memory
                        self._replies.put_nowait(reply)
        except MalformedMessageError as error:
            raise TaskRefusedError(str(error)) from None
        except grpc.aio.AioRpcError as error:
            require_not_cancelled()
            if error.code() not in WORTH_ASKING_AGAIN:
                raise TaskRefusedError(f"the dealer refused: {shown(error.details() or '', LONGEST_REFUSAL)}") from None
            self._why_not = shown(explain(error, Role.DEALER, self._address, self._certificate), LONGEST_REFUSAL)
            if self._greeted.is_set():
                raise PeerUnreachableError(f"lost the {self._why_not}") from None
            self._end_outgoing()
            return self._is_leaving
        if not self._said_goodbye:
            raise PeerUnreachableError("the dealer closed the link")
        return True

    async def wait_until_greeted(self, timeout_s: float) -> None:
        """Return when the dealer has answered our hello. Raises PeerUnreachableError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._greeted.wait()
        except TimeoutError:
            raise PeerUnreachableError(f"no dealer within {round(timeout_s, 1):g} s: {self._why_not}") from None

    async def _outgoing(self) -> AsyncIterator[dealer_pb2.DealRequest]:
        requests = self._requests
        yield dealer_pb2.DealRequest(hello=self._hello)
        while not self._said_goodbye and (request := await requests.get()) is not None:
            self._said_goodbye = request.WhichOneof("request") == "goodbye"
            yield request

    def _end_outgoing(self) -> None:
        """End the requests of a call that nobody answered.

        gRPC does not: they would take the first request of the next call, and it would reach nobody.
        """
        over, self._requests = self._requests, asyncio.Queue()
        while not over.empty():
            self._requests.put_nowait(over.get_nowait())
        over.put_nowait(None)

    def say_goodbye(self, goodbye: common_pb2.Goodbye) -> None:
        """Send the dealer the last message, if it is there: who leaves does not wait for one that is gone."""
        self._is_leaving = True
        self._room.release()  # what is read from now on is dropped, until the dealer has taken the goodbye
        self._requests.put_nowait(dealer_pb2.DealRequest(goodbye=goodbye))

    async def batch(self, shape: BatchShape) -> ServerTuples:
        """Return this server's side of a fresh batch. Several may be under way; they come in the order of the requests.

        Raises PeerUnreachableError, MalformedMessageError.
        """
        self._requests.put_nowait(dealer_pb2.DealRequest(batch=convert.batch_request(shape)))
        async with self._turn:
            limit_s = self._limits.dealing(shape.bytes_to_server_b)
            try:
                async with asyncio.timeout(None if limit_s == math.inf else limit_s):
                    dealt = await self._dealt(shape)
            except TimeoutError:
                expected = f"expected the tuples of round {shape.round} within {limit_s:g} s, found no end of them"
                raise PeerUnreachableError(f"the dealer: {expected}") from None
            return await asyncio.to_thread(ServerTuples, self._party, shape, dealt, self._burns)

    async def _dealt(self, shape: BatchShape) -> Dealt:
        key = (await self._reply("key")).key
        if key.round != shape.round:
            raise MalformedMessageError(f"the dealer sent a batch of round {key.round}, asked for {shape.round}")
        parts = {name: bytearray() for name in convert.DEALT_PARTS}
        limit, is_complete = shape.bytes_to_server_b, False
        while not is_complete:
            corrections = (await self._reply("corrections")).corrections
            for name, received in parts.items():
                received.extend(getattr(corrections, name))
            if sum(map(len, parts.values())) > limit:
                raise MalformedMessageError(f"the dealer's corrections exceed {limit} bytes")
            is_complete = corrections.last
        return convert.dealt_from_parts(key.key, {name: bytes(part) for name, part in parts.items()})

    async def _reply(self, kind: str) -> dealer_pb2.DealReply:
        reply = await self._replies.get()
        if reply is None:
            self._replies.put_nowait(None)
            raise PeerUnreachableError("the dealer is gone")
        self._room.release()
        if reply.WhichOneof("reply") != kind:
            raise MalformedMessageError(f"answer of the dealer: expected {kind}, found {reply.WhichOneof('reply')}")
        return reply
