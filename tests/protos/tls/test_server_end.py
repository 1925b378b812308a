"""How a server's process leaves: no handler of a call is left to the end of the loop, in gRPC's hands.

What that end finds is cancelled there, in the middle of tidying up, or before it began: then gRPC prints a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from precad.protos.tls import transport
from precad.protos.tls.transport import stop_server

METHOD = "/precad.test/Stream"


def stream(tidying_s: float, opened: asyncio.Event, tidied: asyncio.Event) -> grpc.GenericRpcHandler:
    """A call without an end, whose handler needs a while to tidy up when it is cancelled."""

    async def handler(_requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"open")
        opened.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(tidying_s)
            tidied.set()

    method = grpc.stream_stream_rpc_method_handler(handler)
    return grpc.method_handlers_generic_handler("precad.test", {"Stream": method})


async def hang_up_and_stop(tidying_s: float) -> bool:
    """A client hangs up, the server stops. Whether the call's handler had tidied up then."""
    opened, tidied = asyncio.Event(), asyncio.Event()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((stream(tidying_s, opened, tidied),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    call = channel.stream_stream(METHOD)()
    await opened.wait()
    call.cancel()
    await channel.close()
    async with asyncio.timeout(30):
        await stop_server(server, 5.0)
    return tidied.is_set()


def test_handlers_end_before_the_loop_does() -> None:
    """0.3 s of tidying are waited for, where grpc.aio's own stop returns at once."""
    assert asyncio.run(hang_up_and_stop(0.3))


def test_a_handler_that_does_not_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of tidying is not waited for."""
    monkeypatch.setattr(transport, "HANDLERS_END_S", 0.3)
    assert not asyncio.run(hang_up_and_stop(60.0))
