"""The other aggregator is authenticated, and stalls, floods or names rounds to come: real gRPC, TLS and lane.

Failure means one of these:
- a server that keeps its connections open holds up a round for ever;
- such a server makes the honest one hold more than a round can need;
- an honest one that is slow is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from precad.mpc.errors import ChannelClosedError, MalformedMessageError
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2, peer_pb2, peer_pb2_grpc
from precad.protos.tls.files import renewable, renewable_pins
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import bind_server, dial
from precad.servers.door.servicers import MAX_INBOX, PeerServicer
from precad.servers.errors import PeerLateError, PeerUnreachableError
from precad.servers.links import lane, peer, step_limits
from precad.servers.links.lane import HEADER
from precad.servers.links.peer import MAX_MESSAGE_BYTES, PeerLink, dial_peer
from precad.servers.links.step_limits import StepLimits
from precad.servers.telemetry.events import Telemetry
from tests.harness.harness import Pki, asynchronous, small_task, until
from tests.servers.links.test_lane import BIG, lane_pair

LIMIT_S = 0.3
MIB = 1 << 20


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


@contextlib.asynccontextmanager
async def linked(
    pki: Pki, first_round: int = 0, patience_s: float = math.inf
) -> AsyncIterator[tuple[PeerLink, PeerLink]]:
    """A's end and B's, over gRPC. Neither takes in anything yet."""
    hello = common_pb2.Hello(protocol_version="1")
    tls = {name: renewable(pki.tls(name)) for name in ("aggregator-a", "aggregator-b")}
    pins = {role: renewable_pins(pki.tls(role).certificate, role) for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B)}
    server, port = bind_server("127.0.0.1:0", pki.tls("aggregator-b"))
    servicer = PeerServicer(pins[Role.AGGREGATOR_A], Telemetry(Role.AGGREGATOR_B))
    peer_pb2_grpc.add_PeerServicer_to_server(servicer, server)
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        stack.callback(servicer.release)
        address = f"127.0.0.1:{port}"

        def channel() -> grpc.aio.Channel:
            return dial(address, Role.AGGREGATOR_B, tls["aggregator-a"], pins[Role.AGGREGATOR_B])

        (a, _), (b, _) = await asyncio.gather(
            dial_peer(stack, channel, hello, address, 30), servicer.wait_for_peer(hello, 30)
        )
        for link in (a, b):
            link.begin(first_round, patience_s)
        yield a, b


def closed(round: int) -> peer_pb2.PeerMessage:
    return peer_pb2.PeerMessage(closed=peer_pb2.Closed(round=round))


def relay(round: int, data: bytes = b"") -> peer_pb2.PeerMessage:
    return peer_pb2.PeerMessage(relay=peer_pb2.Relay(round=round, client="alice", data=data))


# The link


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ([closed(2**63)], "closed of aggregator-{}: expected round 7, found round 9223372036854775808"),
        ([closed(8)], "expected round 7, found round 8"),
        ([closed(6)], "expected round 7, found round 6"),
        ([closed(7), closed(7)], "expected none before we close ours, found round 7"),
        ([closed(7), closed(8)], "expected none before we close ours, found round 8"),
        ([relay(8)], "relay of aggregator-{}: expected round 7, found round 8"),
        ([closed(7), relay(8)], "relay of aggregator-{}: expected none before we close ours, found round 8"),
        ([relay(7, bytes(MAX_MESSAGE_BYTES))], f"expected at most {MAX_MESSAGE_BYTES} bytes, found 10"),
    ],
)
@pytest.mark.parametrize("deviating", [0, 1])
@asynchronous
async def test_a_peer_that_names_a_round_that_is_not_in_flight_ends_the_link(
    pki: Pki, said: list[peer_pb2.PeerMessage], error: str, deviating: int
) -> None:
    """Round 7 is the one in progress here. Nothing is kept for the others."""
    async with linked(pki, 7) as links:
        honest, other = links[1 - deviating], links[deviating]
        honest.on_relay = lambda *_: None
        for message in said:
            await other._send(message)
        with pytest.raises(MalformedMessageError) as found:
            await honest.run()
        assert error.format("ab"[deviating]) in str(found.value)
        assert set(honest._closed_by_peer) <= {(7, 0), (8, 0)}


@asynchronous
async def test_a_peer_that_is_a_round_ahead_is_believed(pki: Pki) -> None:
    """The twin: it may close a round as soon as we have closed the one before, and tell us late of both."""
    async with linked(pki) as (a, b):
        run = asyncio.create_task(b.run())
        for t in range(20):
            b.close_round(t)
            await a._send(closed(t))
            await a._send(closed(t + 1)) if t == 19 else None
        await b.closed_by_peer(20).wait()
        assert not run.done()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


@asynchronous
async def test_a_server_that_takes_nothing_in_stops_reading(pki: Pki) -> None:
    """B's round is busy elsewhere, and A goes on relaying: a few messages lie at B, and A's writes wait. Then all of
    them arrive."""
    n_messages = 64
    async with linked(pki) as (a, b):
        inbox = b._receive.__self__  # type: ignore[attr-defined]
        n_sent = 0

        async def flood() -> None:
            nonlocal n_sent
            for _ in range(n_messages):
                await a._send(relay(0, bytes(convert.CHUNK_BYTES)))
                n_sent += 1

        flooding = asyncio.create_task(flood())
        await until(lambda: inbox._items.qsize() == MAX_INBOX)
        seen = -1
        while seen < n_sent:  # until it is stuck
            seen = n_sent
            await asyncio.sleep(0.5)
        assert inbox._items.qsize() == MAX_INBOX
        assert n_sent < n_messages // 2
        n_bytes = 0

        def count(round: int, client: str, data: bytes, last: bool, statement: bytes) -> None:
            nonlocal n_bytes
            n_bytes += len(data)

        b.on_relay = count
        run = asyncio.create_task(b.run())
        await flooding
        await a._send(closed(0))
        await b.closed_by_peer(0).wait()
        assert n_bytes == n_messages * MIB
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


@asynchronous
async def test_a_peer_that_does_not_read_loses_the_link(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits until all has left, as a round does, hears of it. (Over a line that is not slow.)"""
    monkeypatch.setattr(peer, "SLOWEST_LINE_BYTES_S", 1 << 30)
    async with linked(pki, patience_s=LIMIT_S) as (a, _):
        run = asyncio.create_task(a.run())
        a.relay(0, "alice", bytes(BIG), b"")
        await a.flush()
        with pytest.raises(PeerUnreachableError, match=r"expected aggregator-b to read .* within 0\.3 s"):
            await run
        assert a.bytes_sent < BIG


# The lane


@pytest.mark.parametrize("part", [b"", HEADER.pack(4, 100), HEADER.pack(4, 100) + b"step" + bytes(50)])
@asynchronous
async def test_a_peer_that_does_not_finish_its_part_of_a_step_loses_the_lane(pki: Pki, part: bytes) -> None:
    """The error says which step, how long, and from whom. The lane is of no use afterwards."""
    a, b = await lane_pair(pki)
    b.limits = StepLimits(every=LIMIT_S)
    if part:
        a._socket.send(part)
    expected = rf"step 'step': expected the part of aggregator-a within 0\.3\d* s, found {len(part)} bytes of it"
    with pytest.raises(ChannelClosedError, match=expected):
        await asyncio.to_thread(b.exchange, "step", b"", 100)
    with pytest.raises(ChannelClosedError, match="left"):
        await asyncio.to_thread(b.exchange, "next", b"")
    a.close()
    b.close()


@asynchronous
async def test_a_byte_now_and_then_buys_no_time(pki: Pki) -> None:
    a, b = await lane_pair(pki)
    b.limits = StepLimits(every=LIMIT_S)
    left = memoryview(HEADER.pack(4, 1000) + b"step" + bytes(1000))

    def drip() -> int:
        n_sent = 0
        with contextlib.suppress(OSError, ValueError):
            while n_sent < len(left):
                n_sent += a._socket.send(left[n_sent : n_sent + 1])
                time.sleep(0.02)
        return n_sent

    dripping = asyncio.create_task(asyncio.to_thread(drip))
    with pytest.raises(ChannelClosedError, match="expected the part of aggregator-a within"):
        await asyncio.to_thread(b.exchange, "step", b"", 1000)
    assert await dripping < len(left)
    a.close()
    b.close()


class Rekeyed:
    """Stands in for TLS to a peer that sends new keys without end: OpenSSL reads on for as long as some come."""

    def __init__(self, connection: socket.socket) -> None:
        self._plain = socket.socket(fileno=os.dup(connection.fileno()))
        self._plain.settimeout(20 * LIMIT_S)

    def send(self, data: memoryview) -> int:
        """Send nothing: the peer would not read it."""
        return len(data)

    def recv_into(self, _: memoryview) -> int:
        """Read until the connection ends, and no text."""
        while self._plain.recv(1 << 16):
            pass
        return 0


@asynchronous
async def test_new_keys_without_end_buy_no_time(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the step does not come back from TLS. The lane ends all the same, and says what was missing."""
    monkeypatch.setattr(lane, "LOOK_S", 0.05)
    a, b = await lane_pair(pki)
    b.limits, b._stream = StepLimits(every=LIMIT_S), Rekeyed(b._socket)
    ends_at = time.monotonic() + 10 * LIMIT_S

    def flood() -> float:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(a._socket.fileno())) as plain:
            while time.monotonic() < ends_at:
                plain.settimeout(LIMIT_S)
                plain.send(bytes(100))
                time.sleep(0.001)
        return ends_at - time.monotonic()

    flooding = asyncio.create_task(asyncio.to_thread(flood))
    with pytest.raises(PeerLateError, match=r"expected the part of aggregator-a within 0\.3\d* s, found 0 bytes of it"):
        await asyncio.to_thread(b.exchange, "step", b"", 1000)
    assert await flooding > 0
    a.close()
    b.close()


@asynchronous
async def test_a_step_of_many_pieces_has_one_limit(pki: Pki) -> None:
    """Each piece comes within it, all together do not: a server could stall a round by its largest step."""
    a, b = await lane_pair(pki)
    b.limits = StepLimits(every=LIMIT_S)

    def slowly() -> None:
        with contextlib.suppress(ChannelClosedError):
            for _ in range(6):
                time.sleep(LIMIT_S / 2)
                a.exchange("step", b"a")

    stalling = asyncio.create_task(asyncio.to_thread(slowly))
    with pytest.raises(ChannelClosedError, match="expected the part of aggregator-a within"):
        await asyncio.to_thread(lambda: list(b.exchange_pieces("step", [b"b"] * 6)))
    await stalling
    a.close()
    b.close()


@asynchronous
async def test_what_we_compute_between_pieces_is_not_the_peers_time(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest one is not cut off by our own disk. Here the clock goes on by a minute for each piece."""
    a, b = await lane_pair(pki)
    b.limits, computed_s = StepLimits(every=100.0), 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + computed_s, perf_counter=time.perf_counter)
    monkeypatch.setattr(lane, "time", clock)

    def pieces() -> Iterator[bytes]:
        nonlocal computed_s
        for _ in range(4):
            computed_s += 60.0
            yield b"b"

    def waited_for() -> Iterator[bytes]:
        for _ in range(4):
            time.sleep(0.03)
            yield b"a"

    ours, theirs = await asyncio.gather(
        asyncio.to_thread(lambda: list(b.exchange_pieces("step", pieces()))),
        asyncio.to_thread(lambda: list(a.exchange_pieces("step", waited_for()))),
    )
    assert (ours, theirs) == ([b"a"] * 4, [b"b"] * 4)
    a.close()
    b.close()


@asynchronous
async def test_a_peer_that_does_not_read_our_part_loses_the_lane(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_limits, "SLOWEST_LINE_BYTES_S", 1 << 30)
    a, b = await lane_pair(pki)
    b.limits = StepLimits(every=LIMIT_S)
    with pytest.raises(ChannelClosedError, match=r"within 0\.3\d* s"):
        await asyncio.to_thread(b.exchange, "step", bytes(BIG), 0)
    a.close()
    b.close()


@pytest.mark.parametrize("label", ["t/0/coin/commit", "t/0/validation/lock", "t/0/validation/proofs"])
@asynchronous
async def test_a_server_that_waits_for_clients_or_dealer_is_waited_for(pki: Pki, label: str) -> None:
    """Longer than a step in which both only compute."""
    a, b = await lane_pair(pki)
    b.limits = StepLimits(every=LIMIT_S, draw=60.0, lock=60.0, proofs=60.0)

    def late() -> bytes:
        time.sleep(3 * LIMIT_S)
        return a.exchange(label, b"a")

    assert await asyncio.gather(asyncio.to_thread(late), asyncio.to_thread(b.exchange, label, b"b")) == [b"b", b"a"]
    a.close()
    b.close()


def test_limits_grow_with_what_an_honest_server_may_have_to_do(pki: Pki, tmp_path: Path) -> None:
    """10^7 parameters and 100 clients: 8 GB at 8 MiB/s beside the ten minutes; a step's bytes at 1 Mbit/s."""
    task = small_task([f"c{i}" for i in range(100)], dim=10**7, submit_timeout_s=70.0, registration_timeout_s=80.0)
    own = pki.aggregator(0, listen="127.0.0.1:1", folder=tmp_path)
    config = own.model_copy(update={"connect_timeout_s": 90.0, "reconnect_timeout_s": 30.0, "rejoin_timeout_s": 7.0})
    limits, computing = StepLimits.of(task, config), 600 + 8e9 / 2**23
    assert limits.seconds("t/0/gate/carries", 0) == pytest.approx(computing)
    assert limits.seconds("t/0/noisy sum", 2 * MIB) == pytest.approx(computing + 16)
    assert limits.seconds("t/0/validation/lock", 0) == pytest.approx(computing + 70)
    proved = small_task([f"c{i}" for i in range(100)], dim=10**7, mode="proved", proof_timeout_s=50.0)
    beside = StepLimits.of(proved, config)
    assert beside.seconds("t/0/validation/proofs", 0) == pytest.approx(
        beside.seconds("t/0/validation/verifier", 0) + 50
    )
    assert limits.seconds("t/0/validation/proofs", 0) == pytest.approx(computing)
    assert limits.seconds("t/0/coin/commit", 0) == pytest.approx(computing + 90 + 80 + 7)
    assert StepLimits.of(task, config.model_copy(update={"step_timeout_s": 0.0})).seconds("x", 1) == math.inf
