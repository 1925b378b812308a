"""The link between the aggregators, both ends over a pair of queues in place of the gRPC stream.

Failure means: a step or a relayed upload that arrives changed, in part or under another name, or a server that goes on
waiting for a peer that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mpc.errors import ChannelClosedError, PeerMismatchError
from protos import convert
from protos.precad.v1 import common_pb2, peer_pb2
from servers import peer as peer_module
from servers.errors import PeerUnreachableError
from servers.peer import BlockingChannel, OnRelay, PeerLink
from tests.integration.harness import OnMessage, asynchronous, link_pair

BIG = 2 * convert.CHUNK_BYTES + 5
"""More than one message holds."""
GOODBYE = common_pb2.Goodbye(finished=True, reason="done")


@contextlib.asynccontextmanager
async def running_pair(
    on_message: OnMessage = lambda party, message: None,
) -> AsyncIterator[tuple[PeerLink, PeerLink, list[asyncio.Task[common_pb2.Goodbye]]]]:
    """Both ends, taking in messages."""
    links = link_pair(on_message)
    runs = [asyncio.create_task(link.run()) for link in links]
    try:
        yield *links, runs
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


@pytest.mark.parametrize("n_bytes", [0, 1, convert.CHUNK_BYTES, convert.CHUNK_BYTES + 1, BIG])
@asynchronous
async def test_an_exchange_swaps_the_payloads(n_bytes: int) -> None:
    """Of any length, and of different ones; both ends count what really went over the wire."""
    ours, theirs = os.urandom(n_bytes), os.urandom(3)
    sent: tuple[list[int], list[int]] = [], []
    async with running_pair(lambda party, message: sent[party].append(message.ByteSize())) as (a, b, _):
        at_a, at_b = await asyncio.gather(a.exchange("step", ours), b.exchange("step", theirs))
        assert (at_a, at_b) == (theirs, ours)
        assert (a.bytes_sent, b.bytes_sent) == (sum(sent[0]), sum(sent[1]))
        assert a.bytes_sent >= n_bytes


@asynchronous
async def test_no_message_comes_near_grpcs_limit() -> None:
    """Steps and relays travel in chunks of at most 1 MiB, and an empty one is a message too."""
    sent: list[peer_pb2.PeerMessage] = []

    async def send(message: peer_pb2.PeerMessage) -> None:
        sent.append(message)

    link = PeerLink(0, send, asyncio.Queue().get)
    run = asyncio.create_task(link.run())
    link.relay(0, "alice", bytes(BIG))
    link.relay(0, "bob", b"")
    await link.say_goodbye(GOODBYE, 5)
    run.cancel()
    assert sent.pop().goodbye == GOODBYE
    assert [len(message.relay.data) for message in sent] == [convert.CHUNK_BYTES, convert.CHUNK_BYTES, 5, 0]
    assert [message.relay.last for message in sent] == [False, False, True, True]
    assert max(message.ByteSize() for message in sent) < convert.CHUNK_BYTES + 1000


@asynchronous
async def test_steps_keep_their_order() -> None:
    """A peer may be one step ahead."""
    async with running_pair() as (a, b, _):
        ahead = [asyncio.create_task(a.exchange("1", b"a1"))]
        await asyncio.sleep(0.01)
        assert b.step_arrived.is_set()
        assert await b.exchange("1", b"b1") == b"a1"
        assert not b.step_arrived.is_set()
        assert await ahead[0] == b"b1"
        assert await asyncio.gather(a.exchange("2", b"a2"), b.exchange("2", b"b2")) == [b"b2", b"a2"]


@asynchronous
async def test_another_label_is_a_mismatch_at_both_ends() -> None:
    async with running_pair() as (a, b, _):
        results = await asyncio.gather(a.exchange("x", b"1"), b.exchange("y", b"2"), return_exceptions=True)
    assert [str(error) for error in results] == [
        "protocol step differs between the servers: ours x, peer's y",
        "protocol step differs between the servers: ours y, peer's x",
    ]
    assert {type(error) for error in results} == {PeerMismatchError}


@asynchronous
async def test_a_step_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "MAX_STEP_BYTES", 10)
    async with running_pair() as (a, _, (_, run_b)):
        sending = asyncio.create_task(a.exchange("step", bytes(11)))
        with pytest.raises(PeerMismatchError, match="length of a step"):
            await run_b
        sending.cancel()


# Relays


def whole(on_relay: Callable[[int, str, bytes], None]) -> OnRelay:
    """Hands on vectors, not pieces."""
    received = bytearray()

    def take(round: int, client: str, data: bytes, last: bool) -> None:
        received.extend(data)
        if last:
            on_relay(round, client, bytes(received))
            received.clear()

    return take


@asynchronous
async def test_relays_arrive_whole_and_in_front_of_the_step_that_follows() -> None:
    """Also when they are longer than one message."""
    payloads = {"alice": os.urandom(BIG), "bob": os.urandom(8)}
    relayed: list[tuple[int, str, bytes]] = []
    async with running_pair() as (a, b, _):
        b.on_relay = whole(lambda *relay: relayed.append(relay))
        for client, payload in payloads.items():
            a.relay(7, client, payload)
        await asyncio.gather(a.exchange("lock", b""), b.exchange("lock", b""))
    assert relayed == [(7, client, payload) for client, payload in payloads.items()]


@asynchronous
async def test_relays_of_two_clients_at_once_do_not_mix() -> None:
    """Uploads end when they end: server A hands over several at a time, each longer than one message."""
    payloads = {"alice": os.urandom(BIG), "bob": os.urandom(BIG)}
    relayed: dict[str, bytes] = {}
    async with running_pair() as (a, b, _):
        b.on_relay = whole(lambda round, client, payload: relayed.__setitem__(client, payload))
        for client, payload in payloads.items():
            a.relay(7, client, payload)
            await asyncio.sleep(0)  # its first piece is on the way when the next one is handed over
        await asyncio.gather(a.exchange("lock", b""), b.exchange("lock", b""))
    arrived_whole = {client: relayed.get(client) == payload for client, payload in payloads.items()}
    assert arrived_whole == {"alice": True, "bob": True}


@asynchronous
async def test_a_relay_under_way_arrives_in_front_of_the_lock() -> None:
    """The step that covers an upload is not taken in before the upload's last piece, `servers.peer` says."""
    arrived: list[str] = []
    async with running_pair() as (a, b, _):
        b.on_relay = whole(lambda round, client, payload: arrived.append("relay"))
        a.relay(7, "alice", bytes(BIG))
        await asyncio.sleep(0)  # its first piece is on the way

        async def lock_at_b() -> None:
            await b.step_arrived.wait()
            arrived.append("lock")
            await b.exchange("lock", b"")

        await asyncio.gather(a.exchange("lock", b""), lock_at_b())
    assert arrived == ["relay", "lock"]


# Ends


@asynchronous
async def test_a_goodbye_ends_the_link_in_peace() -> None:
    async with running_pair() as (a, b, (_, run_b)):
        await a.say_goodbye(GOODBYE, 5)
        assert await run_b == GOODBYE
        with pytest.raises(ChannelClosedError):
            await b.exchange("step", b"")
        await b.say_goodbye(GOODBYE, 5)  # to nobody: silent


@asynchronous
async def test_goodbyes_that_cross_keep_nobody_waiting() -> None:
    """Ours cannot leave any more: the peer's has ended the link, at the same moment or long before."""
    to_b: asyncio.Queue[peer_pb2.PeerMessage] = asyncio.Queue()
    b = PeerLink(1, asyncio.Queue().put, to_b.get)
    run = asyncio.create_task(b.run())
    await asyncio.sleep(0.01)
    to_b.put_nowait(peer_pb2.PeerMessage(goodbye=GOODBYE))
    for _ in range(2):
        async with asyncio.timeout(2):
            await b.say_goodbye(GOODBYE, 30)
    assert await run == GOODBYE


@asynchronous
async def test_what_came_before_the_goodbye_is_still_there() -> None:
    """The faster server is done with its last step when the slower takes it."""
    async with running_pair() as (a, b, (_, run_b)):
        last_step = asyncio.create_task(b.exchange("model", b"b"))
        assert await a.exchange("model", b"a") == b"b"
        await a.say_goodbye(GOODBYE, 5)
        await run_b
        assert await last_step == b"a"


@asynchronous
async def test_a_peer_that_is_gone_ends_the_link_and_the_step_that_waits() -> None:
    """The end of the stream without a goodbye: an error that names it, and no step waits any longer."""
    to_b: asyncio.Queue[peer_pb2.PeerMessage | None] = asyncio.Queue()
    sent: list[peer_pb2.PeerMessage] = []

    async def send(message: peer_pb2.PeerMessage) -> None:
        sent.append(message)

    b = PeerLink(1, send, to_b.get)
    run = asyncio.create_task(b.run())
    waiting = asyncio.create_task(b.exchange("step", b""))
    await asyncio.sleep(0.01)
    to_b.put_nowait(None)
    with pytest.raises(PeerUnreachableError, match="closed the link without a goodbye"):
        await run
    for _ in range(2):
        with pytest.raises(ChannelClosedError, match=r"at step 'step'|has left"):
            await waiting
        waiting = asyncio.create_task(b.exchange("step", b""))
    waiting.cancel()
    assert len(sent) == 1


@asynchronous
async def test_a_peer_that_is_gone_wakes_the_round_that_waits_for_uploads() -> None:
    """As its lock would; the step after that is the one that fails."""
    async with running_pair() as (a, b, (_, run_b)):
        assert not b.step_arrived.is_set()
        await a.say_goodbye(GOODBYE, 5)
        await run_b
        assert b.step_arrived.is_set()


@asynchronous
async def test_half_a_step_is_none() -> None:
    """The peer dies between two chunks."""
    to_b: asyncio.Queue[peer_pb2.PeerMessage | None] = asyncio.Queue()
    b = PeerLink(1, asyncio.Queue().put, to_b.get)
    run = asyncio.create_task(b.run())
    to_b.put_nowait(peer_pb2.PeerMessage(step=peer_pb2.Step(label="step", data=b"half")))
    to_b.put_nowait(None)
    with pytest.raises(ChannelClosedError):
        await b.exchange("step", b"")
    with pytest.raises(PeerUnreachableError):
        await run


@asynchronous
async def test_a_second_hello_is_a_mismatch() -> None:
    async with running_pair() as (a, _, (_, run_b)):
        a.greet(common_pb2.Hello())
        with pytest.raises(PeerMismatchError, match="ours step, relay or goodbye, peer's hello"):
            await run_b


# For the MPC thread


@asynchronous
async def test_the_blocking_channel_is_the_link_under_a_prefix() -> None:
    """Two threads that block, one loop that carries; labels get the task and the round in front."""
    loop = asyncio.get_running_loop()
    async with running_pair() as (a, b, _):
        channels = [BlockingChannel(link, loop, "task-1/3") for link in (a, b)]
        with ThreadPoolExecutor(2) as threads:
            results = await asyncio.gather(
                *(loop.run_in_executor(threads, c.exchange, "lock", bytes([c.party])) for c in channels)
            )
            assert results == [b"\1", b"\0"]
            channels[1] = BlockingChannel(b, loop, "task-1/4")
            with pytest.raises(PeerMismatchError, match=r"ours task-1/[34]/lock, peer's task-1/[34]/lock"):
                await asyncio.gather(*(loop.run_in_executor(threads, c.exchange, "lock", b"") for c in channels))
