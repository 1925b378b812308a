"""gRPC's health protocol on a server's main port, for whoever holds a certificate of the authority.

It opens nothing, and the port asks for a certificate as ever. `Check` says one bit that its holder could find out by
calling. `Watch`, which holds a stream open, is the operator's. A probe without a certificate has the operations port's
/healthz.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from precad.protos.tls.identity import Role, require_role
from precad.servers.door.calls import Context, refusing
from precad.servers.telemetry.events import Telemetry

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
    """To a server that has not started."""
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(telemetry), server)
