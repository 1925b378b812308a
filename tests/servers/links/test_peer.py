"""The link between the aggregators, both ends over a pair of queues in place of the gRPC stream.

Failure means a relayed upload that arrives changed, in part or under another name. It also means a server that goes on
waiting for a peer that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable

import pytest

from precad.mpc.errors import PeerMismatchError
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2, peer_pb2
from precad.servers.errors import PeerUnreachableError
from precad.servers.links.peer import OnRelay, PeerLink
from tests.harness.harness import OnMessage, asynchronous, link_pair, until

BIG = 2 * convert.CHUNK_BYTES + 5
"""More than one message holds."""
GOODBYE = common_pb2.Goodbye(finished=True, reason="done")


@contextlib.asynccontextmanager
async def running_pair(
    on_message: OnMessage = lambda party, message: None, *, first_round: int = 0
) -> AsyncIterator[tuple[PeerLink, PeerLink, list[asyncio.Task[common_pb2.Goodbye]]]]:
    """Both ends, taking in messages."""
    links = link_pair(on_message)
    for link in links:
        link.begin(first_round)
    runs = [asyncio.create_task(link.run()) for link in links]
    try:
        yield *links, runs
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


@asynchronous
async def test_no_message_comes_near_grpcs_limit() -> None:
    """Relays travel in chunks of at most 1 MiB, and an empty one is a message too."""
    sent: list[peer_pb2.PeerMessage] = []

    async def send(message: peer_pb2.PeerMessage) -> None:
        sent.append(message)

    link = PeerLink(0, send, asyncio.Queue().get)
    run = asyncio.create_task(link.run())
    link.relay(0, "alice", bytes(BIG), b"her word")
    link.relay(0, "bob", b"", b"his word")
    await link.say_goodbye(GOODBYE, 5)
    run.cancel()
    assert sent.pop().goodbye == GOODBYE
    assert [len(message.relay.data) for message in sent] == [convert.CHUNK_BYTES, convert.CHUNK_BYTES, 5, 0]
    assert [message.relay.last for message in sent] == [False, False, True, True]
    assert [message.relay.statement for message in sent] == [b"", b"", b"her word", b"his word"]
    assert max(message.ByteSize() for message in sent) < convert.CHUNK_BYTES + 1000


@asynchronous
async def test_the_link_counts_what_goes_over_the_wire() -> None:
    sent: tuple[list[int], list[int]] = [], []
    async with running_pair(lambda party, message: sent[party].append(message.ByteSize())) as (a, b, _):
        b.on_relay = lambda round, client, data, last, statement: None
        a.relay(0, "alice", bytes(BIG), b"her word")
        a.close_round(0)
        await a.flush()
        assert (a.bytes_sent, b.bytes_sent) == (sum(sent[0]), 0)
        assert a.bytes_sent >= BIG


# The close of a round


@asynchronous
async def test_the_peer_hears_that_a_round_is_closed() -> None:
    """That round's event and no other's; also when nobody has asked for it yet."""
    async with running_pair(first_round=3) as (a, b, _):
        waiting = b.closed_by_peer(3)
        a.close_round(3)
        await waiting.wait()
        assert b.closed_by_peer(3).is_set()
        assert not b.closed_by_peer(4).is_set()
        b.close_round(3)
        a.close_round(4)
        await a.flush()
        await until(lambda: b.closed_by_peer(4).is_set())
        assert not a.closed_by_peer(4).is_set()


@asynchronous
async def test_rounds_that_are_over_are_forgotten() -> None:
    """A task of a million rounds keeps no event for each."""
    async with running_pair() as (a, b, _):
        for t in range(100):
            a.close_round(t)
            b.close_round(t)
            await a.closed_by_peer(t).wait()
            await b.closed_by_peer(t).wait()
        assert len(a._closed_by_peer) == len(b._closed_by_peer) == 1


# Relays


def whole(on_relay: Callable[[int, str, bytes, bytes], None]) -> OnRelay:
    """Hands on vectors, not pieces."""
    received = bytearray()

    def take(round: int, client: str, data: bytes, last: bool, statement: bytes) -> None:
        received.extend(data)
        if last:
            on_relay(round, client, bytes(received), statement)
            received.clear()

    return take


@asynchronous
async def test_relays_arrive_whole_and_in_front_of_the_close_that_follows() -> None:
    """Also when they are longer than one message."""
    payloads = {"alice": os.urandom(BIG), "bob": os.urandom(8)}
    relayed: list[tuple[int, str, bytes, bytes]] = []
    async with running_pair(first_round=7) as (a, b, _):
        b.on_relay = whole(lambda *relay: relayed.append(relay))
        for client, payload in payloads.items():
            a.relay(7, client, payload, client.encode())
        a.close_round(7)
        await b.closed_by_peer(7).wait()
    assert relayed == [(7, client, payload, client.encode()) for client, payload in payloads.items()]


@asynchronous
async def test_relays_of_two_clients_at_once_do_not_mix() -> None:
    """Uploads end when they end: server A hands over several at a time, each longer than one message."""
    payloads = {"alice": os.urandom(BIG), "bob": os.urandom(BIG)}
    relayed: dict[str, bytes] = {}
    async with running_pair(first_round=7) as (a, b, _):
        b.on_relay = whole(lambda round, client, payload, statement: relayed.__setitem__(client, payload))
        for client, payload in payloads.items():
            a.relay(7, client, payload, b"")
            await asyncio.sleep(0)  # its first piece is on the way when the next one is handed over
        a.close_round(7)
        await b.closed_by_peer(7).wait()
    arrived_whole = {client: relayed.get(client) == payload for client, payload in payloads.items()}
    assert arrived_whole == {"alice": True, "bob": True}


@asynchronous
async def test_a_relay_under_way_arrives_in_front_of_the_close() -> None:
    """The word that a round is closed is not taken in before the upload's last piece, `precad.servers.links.peer`
    says."""
    arrived: list[str] = []
    async with running_pair(first_round=7) as (a, b, _):
        b.on_relay = whole(lambda round, client, payload, statement: arrived.append("relay"))
        a.relay(7, "alice", bytes(BIG), b"")
        await asyncio.sleep(0)  # its first piece is on the way

        a.close_round(7)
        await b.closed_by_peer(7).wait()
        arrived.append("close")
    assert arrived == ["relay", "close"]


# Ends


@asynchronous
async def test_a_goodbye_ends_the_link_in_peace() -> None:
    async with running_pair() as (a, b, (_, run_b)):
        await a.say_goodbye(GOODBYE, 5)
        assert await run_b == GOODBYE
        await b.say_goodbye(GOODBYE, 5)  # to nobody: silent


@asynchronous
async def test_who_hears_the_goodbye_first_says_its_own_all_the_same() -> None:
    """And what was handed over before it; the peer waits for both, to know that we have finished."""
    async with running_pair(first_round=7) as (a, b, (run_a, run_b)):
        await a.say_goodbye(GOODBYE, 5)
        assert await run_b == GOODBYE
        b.close_round(7)
        await b.say_goodbye(GOODBYE, 5)
        assert await asyncio.wait_for(run_a, 20) == GOODBYE
        assert a.closed_by_peer(7).is_set()


@asynchronous
async def test_goodbyes_that_cross_keep_nobody_waiting() -> None:
    """Ours cannot leave any more: the peer's has ended the link, at the same moment or long before."""
    to_b: asyncio.Queue[peer_pb2.PeerMessage] = asyncio.Queue()
    b = PeerLink(1, asyncio.Queue().put, to_b.get)
    run = asyncio.create_task(b.run())
    await asyncio.sleep(0.01)
    to_b.put_nowait(peer_pb2.PeerMessage(goodbye=GOODBYE))
    for _ in range(2):
        async with asyncio.timeout(15):
            await b.say_goodbye(GOODBYE, 30)
    assert await run == GOODBYE


@asynchronous
async def test_a_peer_that_is_gone_ends_the_link() -> None:
    """The end of the stream without a goodbye: an error that names it."""
    to_b: asyncio.Queue[peer_pb2.PeerMessage | None] = asyncio.Queue()
    b = PeerLink(1, asyncio.Queue().put, to_b.get)
    run = asyncio.create_task(b.run())
    to_b.put_nowait(None)
    with pytest.raises(PeerUnreachableError, match="closed the link without a goodbye"):
        await run


@asynchronous
async def test_a_peer_that_is_gone_wakes_the_round_that_waits_for_uploads() -> None:
    """As its close would, now and later; the step after that is the one that fails."""
    async with running_pair() as (a, b, (_, run_b)):
        waiting = b.closed_by_peer(0)
        assert not waiting.is_set()
        await a.say_goodbye(GOODBYE, 5)
        await run_b
        assert waiting.is_set()
        assert b.closed_by_peer(1).is_set()


class Unreadable:
    """An upload in a file that the disk no longer gives back."""

    def __len__(self) -> int:
        return BIG

    def __getitem__(self, part: slice) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@asynchronous
async def test_a_relay_that_cannot_be_read_ends_the_link_instead_of_holding_up_the_round() -> None:
    """Whoever waits until everything has left, as a round does, hears of it."""
    async with running_pair() as (a, _, (run_a, _)):
        a.relay(7, "alice", Unreadable(), b"")
        a.close_round(7)
        async with asyncio.timeout(15):
            await a.flush()
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                await run_a


@asynchronous
async def test_a_second_hello_is_a_mismatch() -> None:
    async with running_pair() as (a, _, (_, run_b)):
        await a.greet(common_pb2.Hello())
        with pytest.raises(PeerMismatchError, match="ours closed, relay or goodbye, peer's hello"):
            await run_b
