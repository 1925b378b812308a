"""A network in memory with gRPC's manners, so that the servers' and the clients' own code runs over it unchanged.

Messages of a call arrive in their order, each some drawn time after it was sent, as bytes. A connection breaks as a
whole: what is on its way is lost, and both ends hear of it at different times. A call with one reply can lose its
request (the server never hears of it) or its reply (the server did what was asked). It can also arrive twice.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import ssl
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any

import grpc

from precad.protos.tls.files import Pins, TlsFiles, TlsMaterial
from precad.protos.tls.identity import Role
from precad.protos.tls.renewable import Source
from precad.servers.errors import PeerUnreachableError
from tests.faults.simulation.lane import LaneListener, SimulatedLane
from tests.faults.simulation.loop import SimulatedLoop
from tests.faults.simulation.pipe import LONGEST_TRIP_S, Host, Pipe

END = object()


class Mishap(enum.Enum):
    """List what can become of a call with one reply."""

    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    TWICE = "twice"


class Call:
    """One call: what a stub returns, and behind it the server's end."""

    def __init__(self, network: Network, client: Host, server: Host, method: str, reply_class: Callable[[bytes], Any]):
        self.method, self.client, self.server = method, client, server
        self._network, self._loop, self._reply_of = network, network.loop, reply_class
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._replies: asyncio.Queue[Any] = asyncio.Queue()
        self.up, self.down = (Pipe(self._loop, queue.put_nowait) for queue in (self._requests, self._replies))
        self.twin: Call | None = None
        """Gets every request as well."""
        self.loses_reply = self.is_served = False
        self._outcome: tuple[grpc.StatusCode, str] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    def serve(self, handler: Any, context: contextvars.Context, certificate: bytes) -> None:
        """Starts the handler, in the server's context."""
        self._serving = self._loop.create_task(self._serve(handler, ServerContext(self, certificate)), context=context)

    async def _serve(self, handler: Any, context: ServerContext) -> None:
        code, text = grpc.StatusCode.OK, ""
        implementation = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        try:
            arriving = self._arriving(handler.request_deserializer)
            result = implementation(arriving if handler.request_streaming else await anext(arriving), context)
            if hasattr(result, "__aiter__"):
                async for reply in result:
                    await context.write(reply)
            elif (reply := await result) is not None:
                await context.write(reply)
        except _AbortedError as error:
            code, text = error.args
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:  # noqa: BLE001 - as gRPC's server does
            code, text = grpc.StatusCode.UNKNOWN, repr(error)
        finally:
            self.is_served = True
            if self.loses_reply:
                self.cut()
            elif not self.server.is_dead:
                self.down.send((code, text))

    async def _arriving(self, deserialize: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not END:
            yield deserialize(request)

    def reply(self, message: Any) -> None:
        """Send the server's reply."""
        if not (self.server.is_dead or self.down.is_cut or self.loses_reply):
            self._network.on_reply(self, message)
            self.down.send(message.SerializeToString())

    async def write(self, message: Any) -> None:
        """See `grpc.aio.StreamStreamCall`; so the others."""
        await asyncio.sleep(0)
        if self._outcome is not None:
            raise asyncio.InvalidStateError("the call is over")
        self._push(message.SerializeToString())

    def _push(self, item: Any) -> None:
        self.up.send(item)
        if self.twin is not None:
            self.twin.up.send(item)

    def send_all(self, messages: Any) -> None:
        """One message, or an iterator of them; then no more will come."""
        self._sending = self._loop.create_task(self._send_all(messages))

    async def _send_all(self, messages: Any) -> None:
        if hasattr(messages, "__aiter__"):
            async for message in messages:
                self._push(message.SerializeToString())
        else:
            self._push(messages.SerializeToString())
        self._push(END)

    async def read(self) -> Any:
        if self._outcome is None:
            item = await self._replies.get()
            if not isinstance(item, tuple):
                return self._reply_of(item)
            self._outcome = self._outcome or item
            self._hang_up()
        if self._outcome[0] is not grpc.StatusCode.OK:
            empty = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self._outcome[0], empty, empty, details=self._outcome[1])
        return grpc.aio.EOF

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while (reply := await self.read()) is not grpc.aio.EOF:
                yield reply
        finally:
            self.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._one().__await__()

    async def _one(self) -> Any:
        reply = await self.read()
        await self.read()
        return reply

    async def code(self) -> grpc.StatusCode:
        assert self._outcome is not None
        return self._outcome[0]

    async def details(self) -> str:
        assert self._outcome is not None
        return self._outcome[1]

    def done(self) -> bool:
        return self._outcome is not None

    def cancel(self) -> None:
        if self._outcome is None:
            self._outcome = (grpc.StatusCode.CANCELLED, "by the caller")
            self._hang_up()

    def _hang_up(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self._loop.call_later(self._network.trip_s(), self._cancel_handler)
        self._network.calls.pop(self, None)

    def _cancel_handler(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    def cut(self, *, tells_server: bool = True) -> None:
        """The connection is gone; both ends hear of it, some time later each."""
        self.up.is_cut = self.down.is_cut = True
        self._network.calls.pop(self, None)
        broken = (grpc.StatusCode.UNAVAILABLE, "the connection broke")
        self._loop.call_later(self._network.trip_s(), self._replies.put_nowait, broken)
        if tells_server:
            self._loop.call_later(self._network.trip_s(), self._cancel_handler)


class ServerContext:
    """In the place of `grpc.aio.ServicerContext`."""

    def __init__(self, call: Call, certificate: bytes) -> None:
        self._call, self._certificate = call, certificate

    async def write(self, message: Any) -> None:
        await asyncio.sleep(0)
        if self._call.is_served:
            raise asyncio.InvalidStateError("the call is over")
        self._call.reply(message)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate]}

    async def abort(self, code: grpc.StatusCode, text: str = "", trailing_metadata: Any = ()) -> None:
        raise _AbortedError(code, text)

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Nobody reads it here."""


class _AbortedError(Exception):
    """A servicer has refused the call."""


class Server:
    """In the place of `grpc.aio.Server`, at one address."""

    def __init__(self, network: Network, host: Host, address: str) -> None:
        self.host, self._network, self._address = host, network, address
        self.handlers: dict[str, Any] = {}
        self.context = network.context()
        self._is_over = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """They come a second time, by name."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """See `grpc.Server`."""
        self.handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    async def start(self) -> None:
        """From now on it answers."""
        self._network.servers[self._address] = self

    async def wait_for_termination(self) -> bool:
        """See `grpc.aio.Server`."""
        return await self._is_over.wait()

    async def stop(self, grace: float) -> None:
        """Answers no more; open calls may end by themselves for so long."""
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]
        until = self._network.loop.time() + grace
        while self._network.loop.time() < until and any(c.server is self.host for c in self._network.calls):
            await asyncio.sleep(0.05)
        for call in self._network.calls_of(self.host):
            if call.server is self.host:
                call.cut()
        self._is_over.set()


@dataclass(frozen=True)
class _Route:
    """Hold who calls what, and what comes back."""

    host: Host
    address: str
    path: str
    reply_class: Callable[[bytes], Any]
    certificate: bytes


class Channel:
    """In the place of `grpc.aio.Channel`: from a host to an address."""

    def __init__(self, network: Network, host: Host, address: str, certificate: bytes) -> None:
        self._network, self._host, self._address, self._certificate = network, host, address, certificate

    def _method(self, path: str, reply_class: Callable[[bytes], Any], *, replies_once: bool) -> Any:
        def call(messages: Any = None) -> Call:
            route = _Route(self._host, self._address, path, reply_class, self._certificate)
            return self._network.call(route, messages, replies_once=replies_once)

        return call

    def unary_unary(self, path: str, *, response_deserializer: Any = bytes, **_: Any) -> Any:
        """See `grpc.aio.Channel`; so the others."""
        return self._method(path, response_deserializer, replies_once=True)

    stream_unary = unary_unary

    def unary_stream(self, path: str, *, response_deserializer: Any = bytes, **_: Any) -> Any:
        return self._method(path, response_deserializer, replies_once=False)

    stream_stream = unary_stream

    async def close(self) -> None:
        """Its calls end."""
        for call in self._network.calls_of(self._host):
            if call.client is self._host and self._network.address_of(call.server) == self._address:
                call.cancel()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Network:
    """Hold who listens where, and every call that stands. What passes is shown to two observers first."""

    def __init__(self, loop: SimulatedLoop, here: Callable[[], Host], context: Callable[[], Any]) -> None:
        """here: the host whose code is running. context: in which its tasks run."""
        self.loop, self.here, self.context = loop, here, context
        self.servers: dict[str, Server] = {}
        self.listeners: dict[int, LaneListener] = {}
        self.calls: dict[Call, None] = {}
        self.lanes: list[SimulatedLane] = []
        self.mishaps: dict[int, Mishap] = {}
        """By the number of the call with one reply."""
        self.n_single_calls = self._number = 0
        self.on_reply: Callable[[Call, Any], None] = lambda call, message: None
        self.on_step: Callable[[Host, SimulatedLane, str, bytes], None] = lambda host, lane, label, payload: None

    def trip_s(self) -> float:
        """How long something is on its way."""
        return self.loop.draw.uniform(0.0, LONGEST_TRIP_S)

    def next_number(self) -> int:
        """Return the next number of a port or a lane."""
        self._number += 1
        return self._number

    def dial(self, address: str, role: Role, tls: Source[TlsMaterial], pinned: Source[Pins] | None = None) -> Channel:
        """See `precad.protos.tls.transport.dial`."""
        return Channel(self, self.here(), address, tls.load().certificate)

    def bind_server(self, address: str, tls: TlsFiles, *_: Any, **__: Any) -> tuple[Server, int]:
        """See `precad.protos.tls.transport.bind_server`. Nothing intercepts the calls."""
        return Server(self, self.here(), address), 1

    def lane_listener(self, address: str, context: Source[ssl.SSLContext]) -> LaneListener:
        """See `precad.servers.links.lane_listener.LaneListener`."""
        return LaneListener(self, self.here())

    async def open_lane(
        self, address: str, port: int, token: bytes, context: Source[ssl.SSLContext], timeout_s: float
    ) -> SimulatedLane:
        """See `precad.servers.links.lane_opening.open_lane`."""
        await asyncio.sleep(self.trip_s())
        if (listener := self.listeners.get(port)) is None or listener.token != token:
            raise PeerUnreachableError("no lane: nobody listens")
        number = self.next_number()
        ends = SimulatedLane(self, self.here(), 0, number), SimulatedLane(self, listener.host, 1, number)
        ends[0].join(ends[1])
        ends[1].join(ends[0])
        self.lanes = [lane for lane in self.lanes if not lane.is_closed] + list(ends)
        listener.take(ends[1])
        return ends[0]

    def call(self, route: _Route, messages: Any, *, replies_once: bool) -> Call:
        """A call that begins. To nobody, it fails."""
        mishap = None
        if replies_once:
            mishap = self.mishaps.get(self.n_single_calls)
            self.n_single_calls += 1
        server = self.servers.get(route.address)
        if server is None or mishap is Mishap.LOST_REQUEST:
            call = Call(self, route.host, route.host, route.path, route.reply_class)
            call.cut()
            return call
        call = self._begin(route, server)
        if mishap is Mishap.TWICE:
            call.twin = self._begin(route, server)
        call.loses_reply = mishap is Mishap.LOST_REPLY
        if messages is not None:
            call.send_all(messages)
        return call

    def _begin(self, route: _Route, server: Server) -> Call:
        call = Call(self, route.host, server.host, route.path, route.reply_class)
        self.calls[call] = None
        call.serve(server.handlers[route.path], server.context, route.certificate)
        return call

    def calls_of(self, host: Host) -> list[Call]:
        """That it makes or serves."""
        return [call for call in self.calls if host in (call.client, call.server)]

    def address_of(self, host: Host) -> str | None:
        """Where it listens."""
        return next((address for address, server in self.servers.items() if server.host is host), None)

    def forget(self, host: Host) -> None:
        """It is dead: its addresses are free, its connections are gone."""
        for address in [address for address, server in self.servers.items() if server.host is host]:
            del self.servers[address]
        for port in [port for port, listener in self.listeners.items() if listener.host is host]:
            del self.listeners[port]
        for call in self.calls_of(host):
            call.cut(tells_server=call.server is not host)
        self.cut_lanes(host)

    def cut_lanes(self, host: Host) -> None:
        """Those that end there."""
        for lane in self.lanes:
            if lane._host is host:
                lane.close()

    def cut_between(self, one: Host, other: Host) -> None:
        """Every connection of the two."""
        for call in self.calls_of(one):
            if other in (call.client, call.server):
                call.cut()
        for lane in self.lanes:
            if lane._peer is not None and {lane._host, lane._peer._host} == {one, other}:
                lane.close()
