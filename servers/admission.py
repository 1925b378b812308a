"""Admission control: what a server takes on at once, and from whom. All is bounded, and nothing waits in a queue.

A call over a limit is refused before a byte of its body is read, and told when to come back
(`OverloadedError`, which `servers.calls` makes a status and a hint of):

    connections           of all peers, in gRPC itself, before the handshake       max_connections
    calls per second      of one caller, by a token bucket                         calls_per_caller_s, call_burst
    open calls            of one caller; of all clients together                   max_calls_per_caller, max_calls
    uploads, downloads    under way at once, and the uploads' bytes together       max_uploads, max_upload_mb, ...

Whoever holds a certificate is a caller. Clients that are not enrolled share one caller's part: their number has no
bound. The operator has a part of its own, and so has each server, at any rate: a server is refused by its pin at once
or stays, and none of them is kept out by what clients do.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc
import structlog

from mpc.errors import MalformedMessageError
from protos.identity import Identity, Role, peer_identity
from servers.calls import Context, refusing
from servers.config import ServerConfig
from servers.errors import Limit, OverloadedError
from servers.operations.telemetry import Telemetry

log = structlog.get_logger(__name__)

REQUEST_TIMEOUT_S = 10.0
"""How long the one request of a call may take to come."""
CROWDED_RETRY_S = 1.0
"""When to ask again for a place among the open calls: they last long."""
RETRIES_PER_S = 200.0
"""How often clients that wait for a transfer should ask in all, so that asking costs little beside the transfers."""
SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.1, 10.0
FAIR_TURN_S = 5.0
"""A transfer that is younger is not judged by its speed."""
OWN_DESCRIPTORS = 512
"""Open files of a server beside its connections: databases, logs, the operations port (256), links."""
STRANGERS = "precad://client/*"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Requests: TypeAlias = AsyncIterator[Any]


@dataclass(slots=True)
class TokenBucket:
    """At most burst calls at once, and rate a second in the long run."""

    rate: float
    burst: float
    _tokens: float
    _at: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> TokenBucket:
        """As a caller finds it who was silent for long."""
        return cls(rate, burst, burst, now)

    def take(self, now: float) -> float:
        """0 when there was a token, which is taken; else the seconds until there is one."""
        self._tokens = min(self.burst, self._tokens + self.rate * (now - self._at))
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate
        self._tokens -= 1
        return 0.0


class Admission(grpc.aio.ServerInterceptor):
    """Of one server; every call passes it.

    To gRPC every method is one with a stream of requests, which is the same on the wire: the body of a call that is
    refused is then never read, and what is no message is refused here, where gRPC would write a traceback to the log.
    """

    def __init__(
        self,
        config: ServerConfig,
        enrolled: Collection[str],
        telemetry: Telemetry,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """enrolled: clients' names."""
        self._config, self._enrolled, self._telemetry, self._now = config, frozenset(enrolled), telemetry, now
        self._buckets: dict[str, TokenBucket] = {}
        self._open: Counter[str] = Counter()
        self._n_of_clients = 0
        self._admitting: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's handler behind the limits; of a method that does not exist, none."""
        method = handler_call_details.method
        if method not in self._admitting:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._admitting[method] = self._behind_limits(method.rpartition("/")[2], handler)
        return self._admitting[method]

    def _behind_limits(self, call: str, handler: Handler) -> Handler:
        behaviour = _behaviour(handler)

        async def whole(requests: Requests, context: Context) -> Any:
            async with self._admitted(call, context):
                return await behaviour(await self._request(call, handler, requests, context), context)

        async def streamed(requests: Requests, context: Context) -> AsyncIterator[Any]:
            async with self._admitted(call, context):
                request = await self._request(call, handler, requests, context)
                async with aclosing(behaviour(request, context)) as replies:
                    async for reply in replies:
                        yield reply

        make = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        return make(
            streamed if inspect.isasyncgenfunction(behaviour) else whole,
            request_deserializer=handler.request_deserializer if handler.request_streaming else None,
            response_serializer=handler.response_serializer,
        )

    async def _request(self, call: str, handler: Handler, requests: Requests, context: Context) -> Any:
        """What the method's own handler takes: the stream of its requests, or the one."""
        if handler.request_streaming or handler.request_deserializer is None:
            return requests
        async with refusing(call, context, self._telemetry):
            return handler.request_deserializer(await _only_one(requests))

    @asynccontextmanager
    async def _admitted(self, call: str, context: Context) -> AsyncIterator[None]:
        async with refusing(call, context, self._telemetry):
            identity = peer_identity(context)
            caller, is_client = self._caller(identity), identity.role is Role.CLIENT
            if not identity.role.is_server:
                self._require_within_rate(caller)
            self._require_room(caller, is_client=is_client)
        self._open[caller] += 1
        self._n_of_clients += is_client
        try:
            yield
        finally:
            self._n_of_clients -= is_client
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    def _caller(self, identity: Identity) -> str:
        """Whose part a call takes from."""
        is_stranger = identity.role is Role.CLIENT and identity.name not in self._enrolled
        return STRANGERS if is_stranger else identity.uri

    def _require_within_rate(self, caller: str) -> None:
        rate, now = self._config.calls_per_caller_s, self._now()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = TokenBucket.full(rate, self._config.call_burst, now)
        if (wait_s := bucket.take(now)) > 0:
            raise OverloadedError(Limit.RATE, f"at most {rate:g} calls a second", retry_after_s=wait_s)

    def _require_room(self, caller: str, *, is_client: bool) -> None:
        limits = self._config
        if self._open[caller] >= limits.max_calls_per_caller:
            detail = f"at most {limits.max_calls_per_caller} open calls of one caller"
            raise OverloadedError(Limit.CALLS_OF_CALLER, detail, retry_after_s=CROWDED_RETRY_S)
        if is_client and self._n_of_clients >= limits.max_calls:
            detail = f"at most {limits.max_calls} open calls"
            raise OverloadedError(Limit.CALLS, detail, retry_after_s=CROWDED_RETRY_S)


def _behaviour(handler: Handler) -> Callable[[Any, Context], Any]:
    """The servicer's method: every handler has one, of one of four kinds."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return cast("Callable[[Any, Context], Any]", next(kind for kind in kinds if kind is not None))


async def _only_one(requests: Requests) -> bytes:
    """The serialized request of a call that has one. Raises MalformedMessageError."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            request: bytes | None = await anext(aiter(requests), None)
    except TimeoutError:
        request = None
    if request is None:
        raise MalformedMessageError("this call has one request, and none came")
    return request


@dataclass(slots=True, eq=False)
class Place:
    """One transfer that is under way."""

    n_bytes: int
    began_at: float
    limit: asyncio.Timeout
    n_moved: int = 0
    """Bytes of it so far."""
    is_cut_off: bool = False
    """Whether it had to make room. Its client may begin again."""

    def needs_s(self, now: float) -> float:
        """How much longer it takes at the speed that it had so far, seconds."""
        left = self.n_bytes - self.n_moved
        if left <= 0:
            return 0.0
        return left * (now - self.began_at) / self.n_moved if self.n_moved else math.inf

    def cut_off(self) -> None:
        """Ends it. Twice does nothing."""
        if not self.is_cut_off:
            self.is_cut_off = True
            self.limit.reschedule(asyncio.get_running_loop().time())


class Transfers:
    """Uploads, or downloads, of clients that are under way at once: so many, and so many bytes, at most.

    One alone is always let in, however long it is. A client has one: a newer one takes the place of an older, whose
    connection may be lost. Where there is no room, and one is so slow that it will not be over in time, that one is cut
    off: whoever takes a place and sends nothing keeps nobody out.
    """

    def __init__(
        self, limit: Limit, max_places: int, max_bytes: float = math.inf, now: Callable[[], float] = time.monotonic
    ) -> None:
        """limit: the one that max_places is."""
        self._limit, self._max_places, self._max_bytes, self._now = limit, max_places, max_bytes, now
        self._places: dict[str, Place] = {}

    @asynccontextmanager
    async def place(self, client: str, n_bytes: int, *, n_waiting: int, left_s: float) -> AsyncIterator[Place]:
        """For a transfer of n_bytes that must be over in left_s, while n_waiting clients want one.

        Raises OverloadedError, also when it is cut off.
        """
        if (older := self._places.pop(client, None)) is not None:
            older.cut_off()
        self._require_room(n_bytes, n_waiting, left_s)
        try:
            async with asyncio.timeout(None) as limit:
                place = self._places[client] = Place(n_bytes, self._now(), limit)
                try:
                    yield place
                finally:
                    if self._places.get(client) is place:
                        del self._places[client]
        except TimeoutError:
            raise OverloadedError(
                Limit.SLOW_TRANSFER, "it would not be over in time, and others wait", retry_after_s=CROWDED_RETRY_S
            ) from None

    def _require_room(self, n_bytes: int, n_waiting: int, left_s: float) -> None:
        if len(self._places) >= self._max_places:
            limit, detail = self._limit, f"at most {self._max_places} at once"
        elif self._places and sum(place.n_bytes for place in self._places.values()) + n_bytes > self._max_bytes:
            limit, detail = Limit.UPLOAD_BYTES, f"at most {self._max_bytes:.0f} bytes at once"
        else:
            return
        self._cut_off_slowest(left_s)
        retry_after_s = min(max(n_waiting / RETRIES_PER_S, SHORTEST_RETRY_S), LONGEST_RETRY_S)
        raise OverloadedError(limit, detail, retry_after_s=retry_after_s)

    def _cut_off_slowest(self, left_s: float) -> None:
        """If it will not be over in left_s, and has had its turn."""
        now = self._now()
        late = [p for p in self._places.values() if now - p.began_at >= FAIR_TURN_S and p.needs_s(now) > left_s]
        if late:
            max(late, key=lambda place: place.needs_s(now)).cut_off()


def reserve_descriptors(max_connections: int) -> None:
    """Lets this process hold as many open files as its connections need, as far as the system allows it."""
    wanted = max_connections + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    except (OSError, ValueError):  # a sandbox that forbids the call sets the limit itself (deploy/systemd)
        possible = soft
    if possible < wanted:
        log.warning("server.few_descriptors", wanted=wanted, allowed=possible)
