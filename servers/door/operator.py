"""The services for operators and probes: a server's state, of an aggregator every round as it ends, and gRPC's health.

The health protocol is on the server's main port, for whoever holds a certificate of the authority. It opens nothing,
and the port asks for a certificate as ever. `Check` says one bit that its holder could find out by calling. `Watch`,
which holds a stream open, is the operator's. A probe without a certificate has the operations port's /healthz.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from precad.protos.messages import convert
from precad.protos.precad.v1 import control_pb2, control_pb2_grpc
from precad.protos.tls.identity import Role, require_role
from precad.servers.door.calls import Context, refusing
from precad.servers.store.record import to_message
from precad.servers.telemetry.events import Telemetry

STATUS_INTERVAL_S = 0.25
"""How often a watcher's state is looked at: a round passes through seven of them, and people read slower."""


class StatusServicer(control_pb2_grpc.ControlServicer):
    """Whether a server is up, and in which state: all that a dealer has to say."""

    def __init__(self, telemetry: Telemetry, n_registered: Callable[[], int]) -> None:
        self._telemetry, self._n_registered = telemetry, n_registered

    def status(self) -> control_pb2.Status:
        """Return what `GetStatus` answers."""
        telemetry = self._telemetry
        return control_pb2.Status(
            role=telemetry.role,
            state=telemetry.state,
            task=telemetry.task_id,
            round=telemetry.round,
            n_registered=self._n_registered(),
        )

    async def GetStatus(self, request: control_pb2.StatusRequest, context: Context) -> control_pb2.Status:  # noqa: N802
        """Return whether we are up, and in which state."""
        async with refusing("GetStatus", context, self._telemetry):
            require_role(context, Role.OPERATOR)
        return self.status()


class ControlServicer(StatusServicer):
    """An aggregator's, which its operator may watch."""

    def __init__(self, telemetry: Telemetry, n_registered: Callable[[], int]) -> None:
        super().__init__(telemetry, n_registered)
        self._changed = asyncio.Condition()
        self.n_watchers = 0

    async def notify(self) -> None:
        """Wake the watchers: there is a new record, or the end."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_until_unwatched(self) -> None:
        """Return when nobody watches any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.n_watchers == 0)

    async def Watch(  # noqa: N802
        self, request: control_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[control_pb2.ControlEvent]:
        """Stream records of all rounds, old and new, the state now and then, and the end."""
        async with refusing("Watch", context, self._telemetry):
            require_role(context, Role.OPERATOR)
        self.n_watchers += 1
        records = self._telemetry.records
        try:
            n_seen, last = 0, control_pb2.Status()
            while True:
                while n_seen < len(records):
                    record = records[n_seen]
                    n_seen += 1
                    if request.with_models and n_seen == len(records):
                        for event in self._model_events():
                            yield event
                    yield control_pb2.ControlEvent(round=to_message(record))
                if (status := self.status()) != last:
                    last = status
                    yield control_pb2.ControlEvent(status=status)
                if self._telemetry.ended is not None and n_seen == len(records):
                    yield control_pb2.ControlEvent(goodbye=self._telemetry.ended)
                    return
                await self._news(n_seen)
        finally:
            self.n_watchers -= 1
            await asyncio.shield(self.notify())

    async def _news(self, n_seen: int) -> None:
        """Return at the next record or the end, or when it is time to look at the state again."""
        telemetry = self._telemetry
        with suppress(TimeoutError):
            async with asyncio.timeout(STATUS_INTERVAL_S), self._changed:
                await self._changed.wait_for(lambda: len(telemetry.records) > n_seen or telemetry.is_over)

    def _model_events(self) -> Iterator[control_pb2.ControlEvent]:
        assert self._telemetry.parameters is not None  # a round has ended, so there is a model
        for piece in convert.pieces(convert.model_to_bytes(self._telemetry.parameters)):
            yield control_pb2.ControlEvent(model=convert.chunk(piece))


LOOK_S = 0.5
Response: TypeAlias = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # generated without annotations
    """Health of the server as a whole; it names no single services."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def _status(self) -> int:
        return int(Response.SERVING if self._telemetry.is_ready else Response.NOT_SERVING)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Response:  # noqa: N802
        """Return whether the server is ready."""
        async with refusing("Check", context, self._telemetry):
            require_role(context, *Role)
        if request.service:
            await context.abort(grpc.StatusCode.NOT_FOUND, "ask for the server as a whole: an empty service name")
        return Response(status=self._status())

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[Response]:
        """Yield whether the server is ready, now and each time that it changes, until the server is over.

        Asked for a named service, yield once that it is not known.
        """
        async with refusing("Watch", context, self._telemetry):
            require_role(context, Role.OPERATOR)
        last = -1
        while True:
            is_last = bool(request.service) or self._telemetry.is_over
            status = int(Response.SERVICE_UNKNOWN) if request.service else self._status()
            if status != last:
                last = status
                yield Response(status=status)
            if is_last:
                return
            await asyncio.sleep(LOOK_S)


def add_health(telemetry: Telemetry, server: grpc.aio.Server) -> None:
    """Add the health service to a server that has not started."""
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(telemetry), server)
