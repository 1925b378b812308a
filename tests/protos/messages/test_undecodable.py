"""Bytes that are no message, in the streams between servers: over real gRPC with mutual TLS, from the pinned holder.

Failure means a process that goes on, or ends with another exit code than the protocol's. It also means one whose reason
does not say who sent it, or a traceback in a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog
from google.protobuf.descriptor import ServiceDescriptor

from precad.deploy.errors import REFUSED, exit_code_of
from precad.deploy.localhost.observing import Observation, Observers
from precad.mpc.errors import MalformedMessageError
from precad.mpc.tuples.burning import MemoryBurns
from precad.protos.precad.v1 import common_pb2, control_pb2, dealer_pb2, dealer_pb2_grpc, peer_pb2, peer_pb2_grpc
from precad.protos.task.task import PROTOCOL_VERSION
from precad.protos.tls.files import PinFile
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import bind_server, dial
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import DealerServicer
from precad.servers.door import servicers
from precad.servers.errors import TaskRefusedError
from precad.servers.links.dealer import TupleSource
from precad.servers.links.peer import dial_peer
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.telemetry.events import Telemetry
from tests.harness.harness import AGGREGATORS, Pki, asynchronous, free_addresses, small_task, until

TASK = small_task()
HELLO = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=TASK.digest(), task="small-0000000000000001")
JUNK = b"\xff\xff\xff"
PEER = peer_pb2.DESCRIPTOR.services_by_name["Peer"]
CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"]
DEALER = dealer_pb2.DESCRIPTOR.services_by_name["Dealer"]
PEER_HELLO = peer_pb2.PeerMessage(hello=HELLO).SerializeToString()
DEAL_HELLO = dealer_pb2.DealReply(hello=HELLO).SerializeToString()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither of gRPC's or asyncio's, nor in a line of ours."""
    with structlog.testing.capture_logs() as lines:
        yield
        gc.collect()  # a task whose error nobody asked for says so when it goes
    assert [line for line in lines if line.get("exc_info")] == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@contextlib.asynccontextmanager
async def scripted(
    pki: Pki, role: Role, service: ServiceDescriptor, method: str, *replies: bytes, address: str = "127.0.0.1:0"
) -> AsyncIterator[str]:
    """A server with the role's own certificate that answers the first message with these bytes, and waits."""

    async def behave(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await anext(requests)
        for reply in replies:
            yield reply
        await asyncio.Event().wait()

    server, port = bind_server(address, pki.tls(role))
    handlers = {method: grpc.stream_stream_rpc_method_handler(behave)}
    server.add_registered_method_handlers(service.full_name, handlers)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def dialler(pki: Pki, us: Role, address: str, role: Role) -> Callable[[], grpc.aio.Channel]:
    """As a server dials another one."""
    return lambda: dial(address, role, pki.tls(us), PinFile(pki.tls(role).certificate, role))


async def linked_as_a(stack: contextlib.AsyncExitStack, pki: Pki, address: str) -> None:
    """Server A's end, until it is over."""
    channel = dialler(pki, Role.AGGREGATOR_A, address, Role.AGGREGATOR_B)
    link, _ = await dial_peer(stack, channel, HELLO, address, 10.0)
    await link.run()


@pytest.mark.parametrize("replies", [(JUNK,), (PEER_HELLO, JUNK)], ids=["in place of the hello", "after it"])
@asynchronous
async def test_a_refuses_what_b_sends(pki: Pki, replies: tuple[bytes, ...]) -> None:
    async with (
        scripted(pki, Role.AGGREGATOR_B, PEER, "Link", *replies) as address,
        contextlib.AsyncExitStack() as stack,
    ):
        with pytest.raises(TaskRefusedError, match=r"^aggregator-b sent 3 bytes that are no PeerMessage$") as caught:
            await linked_as_a(stack, pki, address)
    assert exit_code_of(caught.value) == REFUSED


@asynchronous
async def test_b_refuses_what_a_sends(pki: Pki) -> None:
    telemetry = Telemetry(Role.AGGREGATOR_B)
    servicer = servicers.PeerServicer(PinFile(pki.tls(Role.AGGREGATOR_A).certificate, Role.AGGREGATOR_A), telemetry)
    server, port = bind_server("127.0.0.1:0", pki.tls(Role.AGGREGATOR_B))
    peer_pb2_grpc.add_PeerServicer_to_server(servicer, server)
    await server.start()
    try:
        async with dialler(pki, Role.AGGREGATOR_A, f"127.0.0.1:{port}", Role.AGGREGATOR_B)() as channel:
            call = channel.stream_stream(f"/{PEER.full_name}/Link")()
            await call.write(PEER_HELLO)
            link, _ = await servicer.wait_for_peer(HELLO, 10.0)
            await call.write(JUNK)
            with pytest.raises(TaskRefusedError, match=r"^aggregator-a sent bytes that are no PeerMessage$") as caught:
                await link.run()
            servicer.release()
            while await call.read() is not grpc.aio.EOF:
                pass
    finally:
        await server.stop(None)
    assert exit_code_of(caught.value) == REFUSED
    assert n_undecodable(telemetry, "Link") == 1


def n_undecodable(telemetry: Telemetry, call: str) -> float:
    """As monitoring reads it."""
    return telemetry.registry.get_sample_value("precad_messages_undecodable_total", {"call": call}) or 0.0


@pytest.mark.parametrize("replies", [(JUNK,), (DEAL_HELLO, JUNK)], ids=["in place of the hello", "after it"])
@asynchronous
async def test_an_aggregator_refuses_what_the_dealer_sends(pki: Pki, replies: tuple[bytes, ...]) -> None:
    async with scripted(pki, Role.DEALER, DEALER, "Deal", *replies) as address:
        channel = dialler(pki, Role.AGGREGATOR_B, address, Role.DEALER)
        with pytest.raises(TaskRefusedError, match=r"^the dealer sent 3 bytes that are no DealReply$") as caught:
            await TupleSource(1, channel, HELLO, address, MemoryBurns()).run()
    assert exit_code_of(caught.value) == REFUSED


@asynchronous
async def test_the_dealer_refuses_what_an_aggregator_sends(pki: Pki, tmp_path: Path) -> None:
    """That stream ends with a status, which ends the aggregator, and the other aggregator's stands."""
    pins = tuple(PinFile(pki.tls(role).certificate, role) for role in AGGREGATORS)
    with DealLedger(tmp_path / "dealt.sqlite") as ledger:
        servicer = DealerServicer(TASK, pins, ledger, Telemetry(Role.DEALER))
        server, port = bind_server("127.0.0.1:0", pki.tls(Role.DEALER))
        dealer_pb2_grpc.add_DealerServicer_to_server(servicer, server)
        await server.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                calls = []
                for role in AGGREGATORS:
                    channel = dialler(pki, role, f"127.0.0.1:{port}", Role.DEALER)()
                    await stack.enter_async_context(channel)
                    call = channel.stream_stream(f"/{DEALER.full_name}/Deal")()
                    await call.write(dealer_pb2.DealRequest(hello=HELLO).SerializeToString())
                    assert await call.read() == DEAL_HELLO
                    calls.append(call)
                await calls[0].write(JUNK)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await calls[0].read()
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                await until(lambda: servicer.n_connected == 1)
                assert not calls[1].done()
                assert n_undecodable(servicer.telemetry, "Deal") == 1
                servicer.hang_up()
                assert await calls[1].read() is grpc.aio.EOF
        finally:
            await server.stop(None)


@asynchronous
async def test_a_local_run_refuses_what_an_aggregator_shows_it(pki: Pki) -> None:
    """`precad run` watches both; what it waits for would never come."""
    inbox: asyncio.Queue[Observation | None] = asyncio.Queue()
    run = object.__new__(Observers)  # nothing of it is needed before the first event
    async with (
        scripted(pki, Role.AGGREGATOR_A, CONTROL, "Watch", JUNK) as address,
        dial(address, Role.AGGREGATOR_A, pki.tls("operator")) as channel,
    ):
        with pytest.raises(
            MalformedMessageError, match=r"^an aggregator sent 3 bytes that are no ControlEvent$"
        ) as caught:
            await run._observe(channel, inbox, asyncio.Event(), None)
    assert exit_code_of(caught.value) == REFUSED


@asynchronous
async def test_both_aggregators_end_with_the_reason_and_not_with_its_consequences(pki: Pki, tmp_path: Path) -> None:
    """Whole servers, whose dealer sends junk after its hello: code 3, and not the 4 of a dealer that is gone."""
    np.save(tmp_path / "initial.npy", np.zeros(TASK.dim, dtype=np.float32))
    a, b, dealer = free_addresses(3)
    async with scripted(pki, Role.DEALER, DEALER, "Deal", DEAL_HELLO, JUNK, address=dealer):
        servers = [
            Aggregator(
                party=party,
                task=TASK,
                config=pki.aggregator(party, listen=(a, b)[party], folder=tmp_path, reconnect_timeout_s=30.0),
                addresses=(b, dealer),
            )
            for party in (0, 1)
        ]
        outcomes = await asyncio.gather(*(server.run() for server in servers), return_exceptions=True)
    reasons = [str(outcome) for outcome in outcomes]
    assert "the dealer sent 3 bytes that are no DealReply" in reasons
    assert REFUSED in [exit_code_of(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
