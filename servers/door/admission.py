"""Admission control: what a server takes on at once, and from whom. All is bounded, and nothing waits in a queue.

A call over a limit is refused before a byte of its body is read. It is told when to come back (`OverloadedError`, which
`precad.servers.door.calls` makes a status and a hint of):

    connections           of all peers, in gRPC itself, before the handshake       max_connections
    connections           of one caller, once a call says whose they are           max_connections_per_caller
    calls per second      of one caller, by a token bucket                         calls_per_caller_s, call_burst
    open calls            of one caller; of all clients together                   max_calls_per_caller, max_calls
    uploads, downloads    under way at once (`precad.servers.rounds.transfers`)    max_uploads, max_upload_mb, ...

Whoever holds a certificate is a caller. Clients that are not enrolled, or revoked, share one caller's part, and so does
who comes with an expired one. Their number has no bound, and no thief takes the part of whoever was certified anew. The
operator has a part of its own, and so has each server, at any rate. A server is refused by its pin at once or stays,
and none of them is kept out by what clients do.
"""

from __future__ import annotations

import asyncio
import inspect
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc
import structlog
from google.protobuf.message import DecodeError

from precad.mpc.errors import MalformedMessageError
from precad.protos.messages import convert
from precad.protos.tls.identity import Identity, Role, is_current, peer_identity, require_current
from precad.protos.tls.key_exchange import GROUP_HINT, negotiated_group, require_hybrid
from precad.protos.tls.transport import bind_server
from precad.servers.config import ServerConfig
from precad.servers.door.calls import Context, refusing
from precad.servers.door.connections import CROWDED_RETRY_S, Connections, HangUps
from precad.servers.door.revocation import Revocations
from precad.servers.errors import Limit, OverloadedError
from precad.servers.telemetry.events import Telemetry

log = structlog.get_logger(__name__)

REQUEST_TIMEOUT_S = 10.0
"""How long the one request of a call may take to come."""
MOST_REQUEST_BYTES = 1 << 16
"""Bytes of the one request of a call. A hello has at most 512 characters of each of a task's fields."""
MOST_PART_BYTES = convert.CHUNK_BYTES + (1 << 12)
"""Bytes of each of many: a chunk, and what an upload begins with."""
OWN_DESCRIPTORS = 512 + 2048
"""Open files of a server beside its connections: databases, logs, the operations port (256), links, and strangers at
the lane's port (2048)."""
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
        """Return the bucket that a caller finds who was silent for long."""
        return cls(rate, burst, burst, now)

    def take(self, now: float) -> float:
        """Take a token. Returns 0 when there was one, else the seconds until there is one."""
        self._tokens = min(self.burst, self._tokens + self.rate * (now - self._at))
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate
        self._tokens -= 1
        return 0.0


class Admission(grpc.aio.ServerInterceptor):
    """Admission control of one server; every call passes it.

    To gRPC every method has a stream of requests, which is the same on the wire. So the body of a call that is refused
    is never read. A message that does not parse is refused here, where gRPC would write a traceback to the log.
    """

    def __init__(
        self,
        config: ServerConfig,
        enrolled: Collection[str],
        telemetry: Telemetry,
        now: Callable[[], float] = time.monotonic,
        *,
        revocations: Revocations | None = None,
    ) -> None:
        """enrolled: clients' names. revocations: of their certificates, where there are any."""
        self._revocations = Revocations(None) if revocations is None else revocations
        self._config, self._enrolled, self._telemetry, self._now = config, frozenset(enrolled), telemetry, now
        self._buckets: dict[str, TokenBucket] = {}
        self._open: Counter[str] = Counter()
        self._n_of_clients = 0
        self._hang_ups = HangUps()
        self._connections = Connections(config.max_connections_per_caller, self._hang_ups, now)
        self._admitting: dict[str, Handler] = {}
        self._unknown = self._behind_limits("unknown", grpc.unary_unary_rpc_method_handler(_no_such_method))

    def listens(self, port: int) -> None:
        """Note the server's main port, at which connections are ended that are too many."""
        self._hang_ups.port = port

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the method's handler behind the limits. One that does not exist has one as well: its caller is
        counted."""
        method = handler_call_details.method
        if method not in self._admitting:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unknown
            self._admitting[method] = self._behind_limits(method.rpartition("/")[2], handler)
        return self._admitting[method]

    def _behind_limits(self, call: str, handler: Handler) -> Handler:
        behaviour = _behaviour(handler)

        async def whole(requests: Requests, context: Context) -> Any:
            async with self._admitted(call, context):
                request = await self._request(call, handler, requests, context)
                try:
                    return await behaviour(request, context)
                except NotImplementedError:  # generated code has the method, and our service lacks it
                    return await _no_such_method(requests, context)

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
            request_deserializer=_bounded(handler.request_deserializer) if handler.request_streaming else None,
            response_serializer=handler.response_serializer,
        )

    async def _request(self, call: str, handler: Handler, requests: Requests, context: Context) -> Any:
        """Return what the method's own handler takes: the stream of its requests, or the one."""
        if handler.request_streaming or handler.request_deserializer is None:
            return requests
        async with refusing(call, context, self._telemetry):
            return handler.request_deserializer(await _only_one(requests))

    @asynccontextmanager
    async def _admitted(self, call: str, context: Context) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            async with refusing(call, context, self._telemetry):
                identity = peer_identity(context)
                if self._config.require_pqc:
                    require_hybrid(context)
                caller, is_client = self._caller(identity, context), identity.role is Role.CLIENT
                stack.enter_context(self._connections.call(caller, context.peer()))
                if not identity.role.is_server:
                    self._require_within_rate(caller)
                if caller == STRANGERS:
                    require_current(context)
                self._require_room(caller, is_client=is_client)
            self._open[caller] += 1
            self._n_of_clients += is_client
            stack.callback(self._note_end, caller, is_client=is_client)
            yield

    def _note_end(self, caller: str, *, is_client: bool) -> None:
        self._n_of_clients -= is_client
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]

    def _caller(self, identity: Identity, context: Context) -> str:
        """Return the caller whose part a call takes from.

        A revoked certificate's is not that of its name's holder, nor is an expired one's. A connection that stands goes
        on as it began.
        """
        is_of_task = identity.name in self._enrolled and not self._revocations.holds(context)
        if identity.role is Role.CLIENT and not is_of_task:
            return STRANGERS
        stands = self._connections.knows(identity.uri, context.peer())
        return identity.uri if stands or is_current(context) else STRANGERS

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
    """Return the servicer's method: every handler has one, of one of four kinds."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return cast("Callable[[Any, Context], Any]", next(kind for kind in kinds if kind is not None))


async def _no_such_method(requests: Requests, context: Context) -> None:
    trailer = ((GROUP_HINT, negotiated_group(context)),)
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!", trailer)  # gRPC's own words


def _bounded(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Return what parses a message of a stream, none that is too long: decoded, it would take many times its length."""
    if parse is None:
        return None

    def bounded(data: bytes) -> Any:
        if len(data) > MOST_PART_BYTES:
            raise DecodeError(f"message: expected at most {MOST_PART_BYTES} bytes, found {len(data)}")
        return parse(data)

    return bounded


async def _only_one(requests: Requests) -> bytes:
    """Return the serialized request of a call that has one, before it is parsed. Raises MalformedMessageError."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            request: bytes | None = await anext(aiter(requests), None)
    except TimeoutError:
        request = None
    if request is None:
        raise MalformedMessageError("this call has one request, and none came")
    if len(request) > MOST_REQUEST_BYTES:
        raise MalformedMessageError(f"request: expected at most {MOST_REQUEST_BYTES} bytes, found {len(request)}")
    return request


def bind(
    config: ServerConfig, enrolled: Collection[str], telemetry: Telemetry, revocations: Revocations | None = None
) -> tuple[grpc.aio.Server, int]:
    """Return a server on its main port, behind admission control, and the port. Raises TlsFileError, TransportError."""
    admission = Admission(config, enrolled, telemetry, revocations=revocations)
    server, port = bind_server(config.listen, config.tls, (admission,), max_connections=config.max_connections)
    admission.listens(port)
    return server, port


def reserve_descriptors(max_connections: int) -> None:
    """Let this process hold as many open files as its connections need, as far as the system allows it."""
    wanted = max_connections + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    except (OSError, ValueError):  # a sandbox that forbids the call sets the limit itself (deploy/hosts/systemd)
        possible = soft
    if possible < wanted:
        log.warning("server.few_descriptors", wanted=wanted, allowed=possible)
