"""Servers that send without end, or never answer: what waits at a client is bounded, in memory and in time.

Failure means: a server that deviates makes a client's memory grow. Or an update and its share seed outlive their round
at a client whose servers say nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

from precad.clients.errors import ProtocolError, ServerUnreachableError
from precad.clients.upload import proved
from precad.clients.upload.events import MOST_EVENT_BYTES, MOST_WAITING, Waiting
from precad.clients.upload.session import ClientSession
from precad.mpc.prg import Seed
from precad.mpc.proved.client import Invitation
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc
from precad.protos.task.task import Task
from tests.clients.upload.test_repeated_invitations import serving
from tests.harness.harness import Pki, asynchronous, small_task, until


@asynchronous
async def test_a_server_takes_no_place_of_the_other() -> None:
    waiting: Waiting[int] = Waiting(most=3)
    for event in range(3):
        waiting.put(0, event)
    with pytest.raises(
        ServerUnreachableError, match=r"aggregator-a: expected at most 3 events that wait .* found more"
    ):
        waiting.put(0, 3)
    waiting.put(1, 10)
    assert [await waiting.get() for _ in range(2)] == [(0, 0), (0, 1)]
    waiting.put(0, 4)
    waiting.keep(lambda event: event != 2)
    assert [await waiting.get() for _ in range(len(waiting))] == [(1, 10), (0, 4)]
    for event in range(3):
        waiting.put(0, event)


@asynchronous
async def test_of_events_that_wait_at_two_places_it_is_known_which_came_first() -> None:
    """Also of one that was kept when others were dropped."""
    ours, others = Waiting[str](), Waiting[str]()
    ours.put(0, "dropped")
    ours.put(0, "first")
    others.put(1, "second")
    ours.put(0, "third")
    ours.keep(lambda event: event != "dropped")
    came = []
    for waiting in (ours, others, ours):
        _, event = await waiting.get()
        came.append((waiting.arrived, event))
    assert [event for _, event in sorted(came)] == ["first", "second", "third"]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


class Flooding(aggregator_pb2_grpc.AggregatorServicer):
    """Sends one event for as long as somebody listens; None sends nothing."""

    def __init__(self, event: aggregator_pb2.ClientEvent | None) -> None:
        self._event = event

    async def Join(self, request: Any, context: Any) -> AsyncIterator[aggregator_pb2.ClientEvent]:
        yield aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome())
        while self._event is not None:
            yield self._event
        await asyncio.Event().wait()


def session_at(addresses: tuple[str, str], mode: str, pki: Pki) -> ClientSession:
    return ClientSession(
        client="alice",
        task=small_task(["alice", "bob"], dim=1, mode=mode),
        addresses=addresses,
        tls=pki.tls("alice"),
        train=lambda _: np.zeros(1, dtype=np.int64),
    )


async def end_of_client(flooding: Flooding, mode: str, pki: Pki) -> Exception:
    """Return what ends a client of which A floods, and B sends nothing."""
    async with serving(pki, (flooding, Flooding(None))) as addresses:
        session = session_at(addresses, mode, pki)
        with pytest.raises((ServerUnreachableError, ProtocolError)) as raised:
            await asyncio.wait_for(session.run(), 30.0)
        return raised.value


@pytest.mark.parametrize("mode", ["masked", "shares", "proved"])
@pytest.mark.parametrize("kind", ["invitation", "challenge"])
@asynchronous
async def test_a_client_hangs_up_on_a_server_that_sends_without_end(pki: Pki, mode: str, kind: str) -> None:
    """A challenge is no event of the other modes, which end the session at the first."""
    if kind == "invitation":
        event = aggregator_pb2.ClientEvent(invitation=aggregator_pb2.Invitation(task="small-1", round=1, dim=1))
    else:
        event = aggregator_pb2.ClientEvent(challenge=aggregator_pb2.Challenge(round=1, challenge=bytes(16)))
    error = await end_of_client(Flooding(event), mode, pki)
    if mode != "proved" and kind == "challenge":
        assert "aggregator-a sent challenge" in str(error)
    else:
        assert f"aggregator-a: expected at most {MOST_WAITING} events that wait" in str(error)


@asynchronous
async def test_an_event_that_is_too_large_is_refused(pki: Pki) -> None:
    reason = aggregator_pb2.Invitation(task="x" * MOST_EVENT_BYTES, round=1)
    error = await end_of_client(Flooding(aggregator_pb2.ClientEvent(invitation=reason)), "masked", pki)
    assert isinstance(error, ProtocolError)
    assert f"aggregator-a: expected events of at most {MOST_EVENT_BYTES} bytes" in str(error)


class Inviting(aggregator_pb2_grpc.AggregatorServicer):
    """Invites to one round, with a share seed, and says nothing more."""

    async def Join(self, request: Any, context: Any) -> None:
        invitation = aggregator_pb2.Invitation(task="small-1", dim=1, mask_seed=bytes(range(16)))
        for event in ({"welcome": aggregator_pb2.Welcome()}, {"invitation": invitation}):
            await context.write(aggregator_pb2.ClientEvent(**event))
        await asyncio.Event().wait()


@asynchronous
async def test_no_stream_keeps_the_share_seed_of_its_last_event(pki: Pki) -> None:
    """Both servers give one, so the client answers nothing."""
    async with serving(pki, (Inviting(), Inviting())) as addresses, contextlib.AsyncExitStack() as stack:
        running = asyncio.create_task(session_at(addresses, "proved", pki).run())
        stack.callback(running.cancel)
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any(line["event"] == "client.skipped" for line in logs))
        held = {id(one): one for holder in gc.get_objects() for one in gc.get_referents(holder)}.values()
        events = [one for one in held if isinstance(one, aggregator_pb2.ClientEvent) and one.invitation.mask_seed]
        raw = [one for one in held if isinstance(one, bytes) and len(one) < 100 and bytes(range(16)) in one]
    assert not events
    assert set(raw) <= {bytes(range(16))}


def upload_of(task: Task) -> tuple[Invitation, Seed, np.ndarray]:
    invitation = Invitation("small-1", 0, 0, task.dim, bytes(32), 0, b"")
    return invitation, Seed(bytes(range(16))), np.zeros(task.dim, dtype=np.int64)


class Silent:
    """Takes uploads, or hangs while it does, and says nothing of a challenge."""

    def __init__(self, hangs: bool) -> None:
        self._hangs, self.taken = hangs, 0

    async def Submit(self, parts: AsyncIterator[Any]) -> bytes:
        async for _ in parts:
            self.taken += 1
        if self._hangs:
            await asyncio.Event().wait()
        return aggregator_pb2.SubmitReply().SerializeToString()


class Refusing:
    """Refuses what it takes."""

    taken = 0

    async def Submit(self, parts: AsyncIterator[Any]) -> bytes:
        async for _ in parts:
            self.taken += 1
        raise grpc.aio.AioRpcError(grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), grpc.aio.Metadata(), "late")


@pytest.mark.parametrize(
    "stub", [Silent(hangs=False), Silent(hangs=True), Refusing()], ids=["says", "hangs", "refuses"]
)
@asynchronous
async def test_an_upload_is_let_go_whatever_servers_say_of_it(stub: Silent | Refusing) -> None:
    """At once: no collection of garbage is needed, which may be rounds away."""
    task = small_task(["alice", "bob"], mode="proved", submit_timeout_s=4.0, proof_timeout_s=0.15)
    train, addresses = (lambda _: upload_of(task)[2]), ("a:1", "b:1")
    session = ClientSession(client="alice", task=task, addresses=addresses, tls=None, train=train)  # type: ignore[arg-type]
    kept: list[weakref.ref[Any]] = []
    make = proved.RoundUpload

    def watched(*arguments: Any, **others: Any) -> proved.RoundUpload:
        made = make(*arguments, **others)
        kept.append(weakref.ref(made))
        return made

    async def model(*_: Any) -> Any:
        return np.zeros(task.dim, dtype=np.float32)

    invitation, seed, x = upload_of(task)
    first = make(x, invitation, Seed(seed.reveal()), task=task, client="alice", conduct=session._conduct)
    first.prepare()  # compiles, for as long as the times of this task
    gc.collect()
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proved, "RoundUpload", watched)
        patch.setattr(session, "_model", model)
        stubs: list[Any] = [stub, stub]
        gc.disable()
        try:
            async with asyncio.timeout(30.0):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await session._take_part_and_prove(stubs, session._training, invitation, seed)
                await until(lambda: kept[0]() is None)  # the thread that prepares a proof comes to its end
        finally:
            gc.enable()
    assert isinstance(stub, Refusing) or time.monotonic() - begun >= 0.3  # twice proof_timeout_s
    assert stub.taken > 0
    assert len(kept) == 1
