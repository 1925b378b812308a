"""End a server whose gRPC has ended under it, with a code at which it is started again.

Failure means a process that goes on without its port, work that is disturbed while gRPC serves, or a stop that fails.
The gRPC is the real one, and ends by an error in the loop that takes calls in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from precad.deploy.errors import UNREACHABLE, exit_code_of
from precad.protos.tls import grpc_server
from precad.protos.tls.files import renewable
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import bind_server, dial, stop_server
from precad.servers.dealer import Dealer
from precad.servers.door.serving import while_serving
from precad.servers.errors import PortLostError
from tests.harness.harness import asynchronous, free_addresses, small_task
from tests.harness.pki import Pki
from tests.servers.test_aggregator import aggregator_a

TASK = small_task()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), TASK.clients)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Give gRPC's loop a fault, and return whether it was met: the loop ends at a call of a method that nobody has."""
    met = asyncio.Event()
    if not grpc_server._TAKES_REGISTERED:
        pytest.skip("this version of gRPC reads names in the call")

    def fail(_core: object, _call: object) -> None:
        met.set()
        raise RuntimeError("a fault of gRPC's")

    monkeypatch.setattr(grpc_server._Core, "_answer", fail)
    return met


@asynccontextmanager
async def started(pki: Pki) -> AsyncIterator[tuple[grpc.aio.Server, str]]:
    server, port = bind_server("127.0.0.1:0", pki.tls("aggregator-a"))
    await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await stop_server(server, 0.0)


async def meet(fault: asyncio.Event, pki: Pki, address: str, role: Role = Role.AGGREGATOR_A) -> None:
    """Make a call that ends gRPC there, as soon as somebody listens, and leave."""
    async with dial(address, role, renewable(pki.tls("alice"))) as channel:
        call = channel.unary_unary("/no/method")(b"", wait_for_ready=True)
        await asyncio.wait_for(fault.wait(), 60)
        call.cancel()


@asynchronous
async def test_work_that_ends_first_gives_its_result_and_gRPC_stops_as_it_does(pki: Pki) -> None:
    """Nothing that waited for gRPC's end is left, and gRPC stops as ever."""

    async def work() -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with started(pki) as (server, _):
        others = asyncio.all_tasks()
        assert await while_serving(work(), server) == "done"
        assert asyncio.all_tasks() <= others


@asynchronous
async def test_an_error_of_the_work_is_its_own(pki: Pki) -> None:
    async def work() -> None:
        raise KeyError("ours")

    async with started(pki) as (server, _):
        with pytest.raises(KeyError, match="ours"):
            await while_serving(work(), server)


@asynchronous
async def test_work_ends_with_gRPC(pki: Pki, fault: asyncio.Event) -> None:
    """Its own cancellation is waited for: what it writes down is whole."""
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async with started(pki) as (server, address):
        working = asyncio.create_task(while_serving(work(), server))
        await meet(fault, pki, address)
        with pytest.raises(PortLostError, match="expected gRPC to serve it, found that it has ended by itself"):
            await working
    assert ended == [True]


@asynchronous
async def test_an_aggregator_ends_with_gRPC_and_is_to_be_started_again(
    pki: Pki, tmp_path: Path, fault: asyncio.Event
) -> None:
    """While it waits for the other one, for longer than this test lasts."""
    (address,) = free_addresses(1)
    running = asyncio.create_task(aggregator_a(pki, tmp_path, listen=address, connect_timeout_s=200.0).run())
    await meet(fault, pki, address)
    with pytest.raises(PortLostError) as caught:
        await running
    assert exit_code_of(caught.value) == UNREACHABLE


@asynchronous
async def test_a_dealer_ends_with_gRPC_and_is_to_be_started_again(
    pki: Pki, tmp_path: Path, fault: asyncio.Event
) -> None:
    """While it waits for the aggregators."""
    (address,) = free_addresses(1)
    config = pki.dealer(listen=address, folder=tmp_path).model_copy(update={"connect_timeout_s": 200.0})
    running = asyncio.create_task(Dealer(task=TASK, config=config).run())
    await meet(fault, pki, address, Role.DEALER)
    with pytest.raises(PortLostError) as caught:
        await running
    assert exit_code_of(caught.value) == UNREACHABLE
