"""Calls whose status comes just as their caller is cancelled: gRPC raises the status then, and nothing was cancelled.

When that happens cannot be chosen. So calls of ours stand for gRPC's here, which lose the first cancellation of a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc.aio import AioRpcError, Metadata

from precad.clients.upload import session as session_module
from precad.clients.upload.patience import until_admitted
from precad.clients.upload.session import ClientSession
from precad.deploy.localhost import observing
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, peer_pb2, peer_pb2_grpc
from precad.protos.tls.files import renewable
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import RETRY_HINT, bind_server, dial, require_not_cancelled
from precad.servers.errors import PeerUnreachableError
from precad.servers.links import dealer, peer
from precad.servers.links.dealer import TupleSource
from tests.harness.harness import asynchronous, small_task
from tests.harness.pki import Pki

ALREADY = AioRpcError(grpc.StatusCode.ALREADY_EXISTS, Metadata(), Metadata((RETRY_HINT, "1")), "linked already")
LIMIT_S = 20.0


async def lost() -> Any:
    """End with the status of the call, instead of by the first cancellation."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 1:
            raise
        raise ALREADY from None


class Call:
    """Stands for a call of gRPC's, of any kind."""

    def __await__(self) -> Any:
        return lost().__await__()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        return await lost()

    async def write(self, message: object) -> None: ...

    async def read(self) -> Any:
        return await lost()

    async def code(self) -> grpc.StatusCode:
        return ALREADY.code()

    async def details(self) -> str | None:
        return ALREADY.details()

    def cancel(self) -> None: ...


STUB = SimpleNamespace(
    Link=Call, Deal=lambda requests: Call(), Join=lambda request: Call(), Watch=lambda request: Call(), Submit=Call
)


class Channel:
    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *error: object) -> None: ...


async def ended_by_cancellation(work: Awaitable[object]) -> bool:
    """Cancel it where it waits for its call, once. Tell whether that ended it."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.05)
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=LIMIT_S)
    if not done:
        task.cancel()
    return bool(done) and task.cancelled()


@asynchronous
async def test_a_server_that_dials_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit, one cancellation: without a second look it would dial for ever."""
    monkeypatch.setattr(peer, "stub_of_bytes", lambda *of: STUB)
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        with pytest.raises(PeerUnreachableError, match=r"no link within 0\.1 s: .*: linked already"):
            await peer.dial_peer(stack, Channel, common_pb2.Hello(), "127.0.0.1:1", 0.1)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        dialling = peer.dial_peer(stack, Channel, common_pb2.Hello(), "127.0.0.1:1", 60.0)  # type: ignore[arg-type]
        assert await ended_by_cancellation(dialling)


class Greeting(peer_pb2_grpc.PeerServicer):
    """Says hello, and nothing more."""

    async def Link(self, requests: object, context: Any) -> None:
        await context.write(peer_pb2.PeerMessage(hello=common_pb2.Hello()))
        await asyncio.Event().wait()


@asynchronous
async def test_a_reader_that_is_cancelled_tells_of_no_peer_that_hung_up(tmp_path: Path) -> None:
    """On a real link: gRPC ends the call with its reader."""
    pki = Pki.create(tmp_path / "pki", ("alice",))
    server, port = bind_server("127.0.0.1:0", pki.tls(Role.AGGREGATOR_B))
    peer_pb2_grpc.add_PeerServicer_to_server(Greeting(), server)
    await server.start()
    address, tls = f"127.0.0.1:{port}", renewable(pki.tls(Role.AGGREGATOR_A))

    async def linked(stack: AsyncExitStack) -> tuple[peer.PeerLink, common_pb2.Hello]:
        calling = partial(dial, address, Role.AGGREGATOR_B, tls)
        return await peer.dial_peer(stack, calling, common_pb2.Hello(), address, LIMIT_S)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, None)
        link, _ = await linked(stack)
        assert await ended_by_cancellation(link.run())
        link, _ = await linked(stack)
        assert await ended_by_cancellation(link._receive())


@asynchronous
async def test_a_server_that_stops_leaves_its_dealer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer, "stub_of_bytes", lambda *of: STUB)
    source = TupleSource(0, Channel, common_pb2.Hello(), "127.0.0.1:1", None)  # type: ignore[arg-type]
    assert await ended_by_cancellation(source.run())


@asynchronous
async def test_a_client_that_stops_makes_no_call_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None that joins, that takes part in a round, or that a server had no room for."""
    pki = Pki.create(tmp_path / "pki", ("alice", "bob"))
    session = ClientSession(
        client="alice",
        task=small_task(["alice", "bob"], dim=1),
        addresses=("127.0.0.1:1", "127.0.0.1:2"),
        tls=pki.tls("alice"),
        train=lambda _: np.zeros(1, dtype=np.int64),
        connect_timeout_s=60.0,
    )
    events = session._events(STUB, 0)  # type: ignore[arg-type]
    assert await ended_by_cancellation(anext(events))
    assert await ended_by_cancellation(until_admitted(Call, 60.0))
    invited = aggregator_pb2.Invitation(task="small-1")
    inboxes: Any = [SimpleNamespace() for _ in range(2)]
    monkeypatch.setattr(ClientSession, "_invited_by_both", answered((invited, invited)))
    monkeypatch.setattr(ClientSession, "_take_part", lambda *of: lost())
    monkeypatch.setattr(session_module, "round_task", lambda a, b, task: task)
    monkeypatch.setattr(session_module, "agree", lambda a, b, task: None)
    assert await ended_by_cancellation(session._answer_next([], inboxes))


def answered(value: object) -> Any:
    """Return what stands for a method that needs to wait for nothing."""

    async def method(*of: object) -> object:
        return value

    return method


@asynchronous
async def test_a_runner_that_stops_watches_no_server_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again for as long as a server has not come up."""
    monkeypatch.setattr(observing, "stub_of_bytes", lambda *of: STUB)
    observers: Any = observing.Observers(None, observing.Progress(), answered(None))  # type: ignore[arg-type]
    assert await ended_by_cancellation(observers._observe(Channel(), asyncio.Queue(), asyncio.Event(), None))


@asynchronous
async def test_whoever_was_not_cancelled_goes_on() -> None:
    """Also where a time limit of an inner part has passed, and was heard of."""
    require_not_cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1.0)
    require_not_cancelled()
