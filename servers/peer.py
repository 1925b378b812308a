"""The link between the two aggregators: one ordered gRPC stream for the whole task, and the channel that MPC runs on.

Steps come in one order on both sides. `PeerLink.exchange` sends ours and takes the peer's next one, and a label that
differs is a PeerMismatchError. Relayed uploads travel on the same stream, in front of the lock that covers them.

The link lives on the event loop; `BlockingChannel` is the same link for the one thread that does MPC (CrypTen is
blocking code and keeps state per process, so there is exactly one such thread).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import grpc

from mpc.errors import ChannelClosedError, PeerMismatchError
from mpc.sharing import Party
from protos import convert
from protos.precad.v1 import common_pb2, peer_pb2
from servers.errors import PeerUnreachableError

Send: TypeAlias = Callable[[peer_pb2.PeerMessage], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[peer_pb2.PeerMessage | None]]
"""The next message, or None at the end of the stream."""
OnRelay: TypeAlias = Callable[[int, str, bytes], None]

MAX_STEP_BYTES = 1 << 34
"""A step longer than any that the protocol has; a peer that sends more is out of its mind."""


class PeerLink:
    """One server's end. `run` must be running for anything to arrive."""

    def __init__(self, party: Party, send: Send, receive: Receive) -> None:
        self.party: Party = party
        self._send, self._receive = send, receive
        self._sending = asyncio.Lock()
        self._steps: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._closed = False
        self.on_relay: OnRelay = _refuse_relay
        self.step_arrived = asyncio.Event()
        """Set while a step of the peer waits to be taken."""
        self.bytes_sent = 0
        self.bytes_received = 0

    async def run(self) -> common_pb2.Goodbye:
        """Takes in messages until the peer says goodbye, which is returned.

        Raises: PeerUnreachableError when the stream ends without one.
        """
        step, relay = bytearray(), bytearray()
        try:
            while (message := await self._receive()) is not None:
                self.bytes_received += message.ByteSize()
                match message.WhichOneof("message"):
                    case "step":
                        step += message.step.data
                        if len(step) > MAX_STEP_BYTES:
                            raise PeerMismatchError("length of a step", ours=f"<= {MAX_STEP_BYTES}", peers=len(step))
                        if message.step.last:
                            self._steps.put_nowait((message.step.label, bytes(step)))
                            self.step_arrived.set()
                            step.clear()
                    case "relay":
                        relay += message.relay.data
                        if message.relay.last:
                            self.on_relay(message.relay.round, message.relay.client, bytes(relay))
                            relay.clear()
                    case "goodbye":
                        return message.goodbye
                    case other:
                        raise PeerMismatchError("message on the link", ours="step, relay or goodbye", peers=other)
        finally:
            self._closed = True
            self._steps.put_nowait(None)
            self.step_arrived.set()
        raise PeerUnreachableError("the other aggregator closed the link without a goodbye")

    async def greet(self, hello: common_pb2.Hello) -> None:
        """The first message of the answering side."""
        await self._write(peer_pb2.PeerMessage(hello=hello))

    async def exchange(self, label: str, payload: bytes) -> bytes:
        """Sends our payload of a step and returns the peer's. Raises PeerMismatchError, ChannelClosedError."""
        for piece, is_last in _with_last(payload):
            await self._write(peer_pb2.PeerMessage(step=peer_pb2.Step(label=label, data=piece, last=is_last)))
        arrived = await self._steps.get()
        if self._steps.empty():
            self.step_arrived.clear()
        if arrived is None:
            self._steps.put_nowait(None)
            raise ChannelClosedError(f"the other aggregator left, at step {label!r}")
        peers_label, peers_payload = arrived
        if peers_label != label:
            raise PeerMismatchError("protocol step", ours=label, peers=peers_label)
        return peers_payload

    async def relay(self, round: int, client: str, payload: bytes) -> None:
        """Passes a masked upload on. Run by server A."""
        for piece, is_last in _with_last(payload):
            relay = peer_pb2.Relay(round=round, client=client, data=piece, last=is_last)
            await self._write(peer_pb2.PeerMessage(relay=relay))

    async def say_goodbye(self, goodbye: common_pb2.Goodbye) -> None:
        """The last message; silent when the peer is gone already."""
        try:
            await self._write(peer_pb2.PeerMessage(goodbye=goodbye))
        except ChannelClosedError:
            return

    async def _write(self, message: peer_pb2.PeerMessage) -> None:
        if self._closed:
            raise ChannelClosedError("the other aggregator has left")
        try:
            async with self._sending:
                await self._send(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            raise ChannelClosedError("the other aggregator has left") from None
        self.bytes_sent += message.ByteSize()


class BlockingChannel:
    """`mpc.channel.Channel` over the link, for the MPC thread."""

    def __init__(self, link: PeerLink, loop: asyncio.AbstractEventLoop, prefix: str) -> None:
        self._link, self._loop, self._prefix = link, loop, prefix
        self.rounds = 0

    @property
    def party(self) -> Party:
        """0 for A, 1 for B."""
        return self._link.party

    def exchange(self, label: str, payload: bytes) -> bytes:
        """See `Channel.exchange`. Never called on the event loop's own thread."""
        self.rounds += 1
        step = self._link.exchange(f"{self._prefix}/{label}", payload)
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()


def _with_last(payload: bytes) -> list[tuple[bytes, bool]]:
    parts = list(convert.pieces(payload))
    return [(part, i == len(parts) - 1) for i, part in enumerate(parts)]


def _refuse_relay(round: int, client: str, payload: bytes) -> None:
    raise PeerMismatchError("message on the link", ours="no relay", peers=f"relay of {client} in round {round}")
