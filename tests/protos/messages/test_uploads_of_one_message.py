"""Uploads through `stub_of_bytes`: whatever their number of messages, a server reads the same ones.

Failure means a part that is lost, doubled or out of order, or a refusal that does not reach the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from precad.protos.messages.undecoded import stub_of_bytes
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from tests.harness.harness import asynchronous

SERVICE = aggregator_pb2.DESCRIPTOR.services_by_name["Aggregator"]


def _parts(n: int) -> list[aggregator_pb2.SubmitPart]:
    return [aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=bytes([i]) * 70_000)) for i in range(n)]


async def _each(parts: list[aggregator_pb2.SubmitPart]) -> AsyncIterator[aggregator_pb2.SubmitPart]:
    for part in parts:
        yield part


async def _sent(n: int) -> list[aggregator_pb2.SubmitPart]:
    """Return what a server reads of an upload of n messages; it refuses one of three."""
    read: list[aggregator_pb2.SubmitPart] = []

    async def submit(requests: AsyncIterator[Any], context: Any) -> bytes:
        read.extend([part async for part in requests])
        if n == 3:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not three")
        return b""

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
        submit, aggregator_pb2.SubmitPart.FromString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, {"Submit": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await stub_of_bytes(channel, SERVICE).Submit(_each(_parts(n))) == b""
    finally:
        await server.stop(None)
    return read


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@asynchronous
async def test_a_server_reads_every_part_in_order(n: int) -> None:
    assert await _sent(n) == _parts(n)


@asynchronous
async def test_a_refusal_reaches_the_client() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _sent(3)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not three")
