"""Bytes that are no message, from an aggregator to a client: over real gRPC with mutual TLS.

Failure means a traceback on standard error, or a client that ends for something that costs it one round. It also means
an end with another exit code than the protocol's, or one that does not say who sent the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

from precad.clients.errors import ProtocolError, TaskRefusedError
from precad.clients.upload.session import ClientSession
from precad.deploy.errors import REFUSED, exit_code_of
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.messages.spoken import LONGEST_REFUSAL
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import bind_server
from tests.harness.harness import AGGREGATORS, Pki, asynchronous, small_task

TASK = small_task(["alice", "bob"])
JUNK = b"\xff\xff\xff"
MODEL = bytes(4 * TASK.dim)
SERVICE = aggregator_pb2.DESCRIPTOR.services_by_name["Aggregator"]
WELCOME = aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome()).SerializeToString()
INVITED = aggregator_pb2.ClientEvent(
    invitation=aggregator_pb2.Invitation(
        task="small-1",
        dim=TASK.dim,
        model_digest=convert.sha256(MODEL),
        mask_seed=bytes(16),
        peer_mask_seed_digest=convert.sha256(bytes(16)),
    )
).SerializeToString()
GOODBYE = aggregator_pb2.ClientEvent(goodbye=common_pb2.Goodbye(finished=True)).SerializeToString()
CHUNK = common_pb2.Chunk(data=MODEL).SerializeToString()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[Any]]:
    """Yield the lines of the client's log. Nothing is logged as an error: neither by gRPC or asyncio, nor by us."""
    with structlog.testing.capture_logs() as captured:
        yield captured
        gc.collect()  # a task whose error nobody asked for says so when it goes
    assert [line for line in captured if line.get("exc_info")] == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class Scripted:
    """An aggregator that answers each method with these bytes, and says goodbye when it is told to."""

    def __init__(self, join: bytes, model: bytes = CHUNK, submitted: bytes | None = b"") -> None:
        """submitted: None for a call that ends well, and without a message."""
        self._join, self._model, self._submitted = join, model, submitted
        self.is_over = asyncio.Event()

    def handlers(self) -> Mapping[str, Any]:
        """As gRPC takes them, without a message's class."""
        return {
            "Join": grpc.unary_stream_rpc_method_handler(self.join),
            "GetModel": grpc.unary_stream_rpc_method_handler(self.get_model),
            "Submit": grpc.stream_stream_rpc_method_handler(self.submit),  # alike on the wire
        }

    async def join(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        yield WELCOME
        yield self._join
        await self.is_over.wait()
        yield GOODBYE

    async def get_model(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        yield self._model

    async def submit(self, parts: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for _part in parts:
            pass
        if self._submitted is not None:
            yield self._submitted


@contextlib.asynccontextmanager
async def listening(pki: Pki, role: Role, scripted: Scripted) -> AsyncIterator[str]:
    """At an address of loopback."""
    server, port = bind_server("127.0.0.1:0", pki.tls(role))
    server.add_registered_method_handlers(SERVICE.full_name, scripted.handlers())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def trained(_: Any) -> RingArray:
    return np.zeros(TASK.dim, dtype=np.int64)


async def meet(pki: Pki, servers: tuple[Scripted, Scripted]) -> None:
    """Alice, with both of them."""
    async with contextlib.AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(listening(pki, role, server))
            for role, server in zip(AGGREGATORS, servers, strict=True)
        ]
        await ClientSession(client="alice", task=TASK, addresses=(a, b), tls=pki.tls("alice"), train=trained).run()


@asynchronous
async def test_a_client_ends_on_an_event_that_is_none(pki: Pki, lines: list[Any]) -> None:
    with pytest.raises(ProtocolError, match=r"^aggregator-b sent 3 bytes that are no ClientEvent$") as caught:
        await meet(pki, (Scripted(INVITED), Scripted(JUNK)))
    assert exit_code_of(caught.value) == REFUSED


@pytest.mark.parametrize(
    ("of_a", "reason"),
    [
        ({"model": JUNK}, "aggregator-a sent 3 bytes that are no Chunk"),
        (
            {"model": common_pb2.Chunk(data=MODEL + b"!").SerializeToString()},
            f"a stream of chunks exceeds {4 * TASK.dim} bytes",
        ),
        ({"submitted": JUNK}, "aggregator-a sent 3 bytes that are no SubmitReply"),
        ({"submitted": None}, "aggregator-a sent no SubmitReply"),
    ],
    ids=["model", "longer model", "reply", "no reply"],
)
@asynchronous
async def test_a_reply_that_is_none_costs_the_client_its_round(
    of_a: dict[str, Any], reason: str, pki: Pki, lines: list[Any]
) -> None:
    servers = (Scripted(INVITED, **of_a), Scripted(INVITED))
    session = asyncio.create_task(meet(pki, servers))
    while not session.done() and not (skipped := [line for line in lines if line["event"] == "client.skipped"]):
        await asyncio.sleep(0.01)
    for server in servers:
        server.is_over.set()
    await session
    assert [line["reason"] for line in skipped] == [reason]


class Refusing(Scripted):
    """Refuses its client with as much as gRPC takes in."""

    async def join(self, _: bytes, context: Any) -> AsyncIterator[bytes]:
        yield WELCOME
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "\x1b[31m\n" + "x" * 8000)


@asynchronous
async def test_what_a_server_says_of_a_call_is_cut_and_obeyed_by_no_terminal(pki: Pki, lines: list[Any]) -> None:
    """A server that hangs up again and again would fill its clients' logs with it."""
    with pytest.raises(TaskRefusedError, match=r"^aggregator-b at 127\.0\.0\.1:\d+: \?\[31m\?x+ \(PERM.*\)$") as caught:
        await meet(pki, (Scripted(INVITED), Refusing(b"")))
    assert len(str(caught.value)) < LONGEST_REFUSAL + 30
