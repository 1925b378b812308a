"""A server's work goes on only as long as gRPC serves its main port.

A fault in gRPC's own loop closes the port and cuts all streams, and the process would go on without them.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TypeVar

import grpc

from precad.protos.tls.grpc_server import until_ended
from precad.servers.errors import PortLostError
from precad.servers.supervision import guarded

T = TypeVar("T")


async def while_serving(work: Coroutine[None, None, T], server: grpc.aio.Server) -> T:
    """Return the work's result. Raises PortLostError as soon as gRPC has ended by itself a server that was started."""

    async def serves() -> None:
        await until_ended(server)
        raise PortLostError("the main port: expected gRPC to serve it, found that it has ended by itself")

    return await guarded(work, serves())
