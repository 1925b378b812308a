"""The lane between the aggregators, over real sockets with TLS on loopback, both ends in threads as in production.

Failure means a step that arrives changed, in part or under another name, or two servers that wait for each other. It
also means a stranger who gets in, or a server that goes on waiting for a peer that is gone.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import os
import socket
import ssl
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from precad.mpc.channel import Prefixed
from precad.mpc.errors import ChannelClosedError, MalformedMessageError, PeerMismatchError
from precad.protos.tls.files import TlsContext, TransportError
from precad.servers.errors import PeerUnreachableError
from precad.servers.links import lane as lane_module
from precad.servers.links.lane import HEADER, Lane, lane_context
from precad.servers.links.lane_listener import LaneListener
from precad.servers.links.lane_opening import CHALLENGE_BYTES, answer_to, open_lane
from tests.harness.harness import Pki, asynchronous, until

BIG = 24 * 1024 * 1024
"""Several times what the buffers of a loopback connection hold."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


def of_a(shown: Pki, trusted: Pki) -> TlsContext:
    """Return what A brings along: its certificate by one authority, the pin of a B by one."""
    return lane_context(0, shown.tls("aggregator-a"), trusted.tls("aggregator-b").certificate)


def listener(pki: Pki, address: str = "127.0.0.1:0") -> LaneListener:
    return LaneListener(address, lane_context(1, pki.tls("aggregator-b"), pki.tls("aggregator-a").certificate))


async def lane_pair(pki: Pki) -> tuple[Lane, Lane]:
    at_b = listener(pki)
    return await asyncio.gather(open_lane("127.0.0.1:1", at_b.port, at_b.token, of_a(pki, pki), 10), at_b.accept(10))


async def both(at_a: Callable[[], bytes], at_b: Callable[[], bytes]) -> list[bytes | BaseException]:
    """Each in a thread of its own; an error is a result."""
    with ThreadPoolExecutor(2) as threads:
        loop = asyncio.get_running_loop()
        runs = (loop.run_in_executor(threads, program) for program in (at_a, at_b))
        return await asyncio.gather(*runs, return_exceptions=True)


@pytest.mark.parametrize("n_bytes", [0, 1, 16_384, lane_module.WRITE_BYTES, lane_module.WRITE_BYTES + 1, BIG])
@asynchronous
async def test_an_exchange_swaps_the_payloads(pki: Pki, n_bytes: int) -> None:
    """Swap payloads of any length, also when both are longer than every buffer between them, and of different lengths.

    The count is of what the socket sends, TLS's records included.
    """
    a, b = await lane_pair(pki)
    before = a.bytes_sent
    long, short, twin = os.urandom(n_bytes), os.urandom(3), os.urandom(n_bytes)
    for ours, theirs in ((long, short), (short, long), (long, twin)):
        received = await both(
            functools.partial(a.exchange, "step", ours, len(theirs)),
            functools.partial(b.exchange, "step", theirs, len(ours)),
        )
        assert received == [theirs, ours]
    frames = 3 * (HEADER.size + 4) + 2 * n_bytes + 3
    assert a._bytes_written == frames
    assert frames + 3 * 22 <= a.bytes_sent - before <= 1.05 * frames + 10 * 22  # some records are short
    a.close()
    b.close()


@asynchronous
async def test_a_step_spins_only_as_long_as_that_has_paid(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is slow is soon waited for asleep. One that answers at the third look is spun for, longer again."""
    a, b = await lane_pair(pki)

    def slow() -> bytes:
        time.sleep(0.03)
        return b.exchange("step", b"b")

    for _ in range(4):
        assert await both(lambda: a.exchange("step", b"a"), slow) == [b"b", b"a"]
    assert a.spin_s == lane_module.LEAST_SPIN_S
    looks, read = itertools.count(1), a._read
    monkeypatch.setattr(a, "_read", lambda incoming: next(looks) > 2 and read(incoming))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # whatever else this machine does
    b._socket.send(HEADER.pack(4, 1) + b"stepb")
    assert a.exchange("step", b"a") == b"b"
    assert a.spin_s == 2 * lane_module.LEAST_SPIN_S
    a.close()
    b.close()


@asynchronous
async def test_a_peer_may_be_a_step_ahead(pki: Pki) -> None:
    """Take nothing that the peer has written of the next step for a part of this one."""
    a, b = await lane_pair(pki)

    def fast() -> bytes:
        return a.exchange("1", b"a1", 100_000) + a.exchange("2", b"a2" * 50_000)

    def slow() -> bytes:
        return b.exchange("1", b"b1" * 50_000) + b.exchange("2", b"b2", 100_000)

    assert await both(fast, slow) == [b"b1" * 50_000 + b"b2", b"a1" + b"a2" * 50_000]
    a.close()
    b.close()


@asynchronous
async def test_another_label_is_a_mismatch_at_both_ends(pki: Pki) -> None:
    a, b = await lane_pair(pki)
    one, other = Prefixed(a, "task-1/3"), Prefixed(b, "task-1/4")
    results = await both(lambda: one.exchange("lock", b"1"), lambda: other.exchange("lock", b"2"))
    assert {type(error) for error in results} == {PeerMismatchError}
    assert [str(error) for error in results] == [
        "protocol step differs between the servers: ours task-1/3/lock, peer's task-1/4/lock",
        "protocol step differs between the servers: ours task-1/4/lock, peer's task-1/3/lock",
    ]
    a.close()
    b.close()


@pytest.mark.parametrize(
    ("frame", "at_most", "error", "message"),
    [
        (HEADER.pack(1 << 11, 0), None, MalformedMessageError, "label: expected at most 1024 bytes, found 2048"),
        (HEADER.pack(2, 0) + b"\xff\xfe", None, MalformedMessageError, "not text"),
        (HEADER.pack(4, 0) + b"a\nb\x1b", None, MalformedMessageError, "not text"),
        (HEADER.pack(4, 3) + b"step", None, MalformedMessageError, "'step': expected at most 2 bytes, found 3"),
        (HEADER.pack(4, 3) + b"step", 0, MalformedMessageError, "'step': expected at most 0 bytes, found 3"),
        (
            HEADER.pack(4, 1 << 34) + b"step",
            None,
            MalformedMessageError,
            "'step': expected at most 2 bytes, found 17179869184",
        ),
        (
            HEADER.pack(4, 2**64 - 1) + b"step",
            1 << 20,
            MalformedMessageError,
            "'step': expected at most 1048576 bytes, found 1844",
        ),
        (HEADER.pack(4, 1 << 34) + b"coin", None, PeerMismatchError, "ours step, peer's coin"),
    ],
)
@asynchronous
async def test_a_longer_frame_than_the_step_can_need_is_refused(
    pki: Pki, frame: bytes, at_most: int | None, error: type[Exception], message: str
) -> None:
    """When its lengths are known, and before any of its payload has come: none of it follows here."""
    a, b = await lane_pair(pki)
    a._socket.send(frame)
    async with asyncio.timeout(20):
        with pytest.raises(error, match=message):
            await asyncio.to_thread(b.exchange, "step", b"xy", at_most)
    a.close()
    b.close()


@asynchronous
async def test_no_memory_is_taken_for_what_a_peer_announces(pki: Pki) -> None:
    """A peer that announces 1 GiB, in one frame and as a piece, and has sent 8 MiB of it already."""
    a, b = await lane_pair(pki)
    c, d = await lane_pair(pki)
    writing = [
        asyncio.create_task(asyncio.to_thread(_pour, lane, HEADER.pack(4, 1 << 30) + b"step" + bytes(1 << 23)))
        for lane in (a, c)
    ]
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match="'step': expected at most 32 bytes, found 1073741824"):
            await asyncio.to_thread(b.exchange, "step", bytes(32))
        with pytest.raises(MalformedMessageError, match="'step': expected at most 1024 bytes, found 1073741824"):
            await asyncio.to_thread(lambda: list(d.exchange_pieces("step", [bytes(1024)])))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    for lane in (a, b, c, d):
        lane.close()
    await asyncio.gather(*writing)


@asynchronous
async def test_a_peer_that_runs_ahead_waits(pki: Pki) -> None:
    """Let the peer fill the socket's buffers, which the system bounds, with steps to come, and nothing of ours."""
    a, b = await lane_pair(pki)
    sent = 0

    def run_ahead() -> None:
        nonlocal sent
        piece = HEADER.pack(4, 1 << 20) + b"step" + bytes(1 << 20)
        while _pour(a, piece):
            sent += len(piece)

    writing = asyncio.create_task(asyncio.to_thread(run_ahead))
    seen = -1
    while seen < sent:  # until it is stuck
        seen = sent
        await asyncio.sleep(0.5)
    tracemalloc.start()
    try:
        assert await asyncio.to_thread(b.exchange, "step", bytes(1 << 10), 1 << 20) == bytes(1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # this step's, twice
    finally:
        tracemalloc.stop()
    b.close()
    a.close()
    await writing


def _pour(lane: Lane, data: bytes) -> bool:
    """Sends it whatever the peer does; False when the lane is closed meanwhile."""
    left = memoryview(data)
    try:
        while left:
            try:
                left = left[lane._socket.send(left[: 1 << 18]) :]
            except ssl.SSLWantWriteError:
                lane._writable.poll(50)
    except (OSError, ValueError):
        return False
    return True


@pytest.mark.parametrize("closes", ["ours", "peers"])
@asynchronous
async def test_the_end_of_a_lane_wakes_whoever_waits(pki: Pki, closes: str) -> None:
    """Our own close, from another thread, and the peer's; half of a step is none; and it stays closed."""
    a, b = await lane_pair(pki)
    waiting = asyncio.create_task(asyncio.to_thread(b.exchange, "step", b"", 100))
    await asyncio.sleep(0.05)
    a._socket.send(HEADER.pack(4, 100) + b"step" + bytes(50))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    (b if closes == "ours" else a).close()
    async with asyncio.timeout(20):
        with pytest.raises(ChannelClosedError, match="the other aggregator left, at step 'step'"):
            await waiting
        with pytest.raises(ChannelClosedError):
            await asyncio.to_thread(b.exchange, "next", b"")
    a.close()
    b.close()


@asynchronous
async def test_a_close_wakes_a_writer_whose_peer_does_not_read(pki: Pki) -> None:
    a, b = await lane_pair(pki)
    writing = asyncio.create_task(asyncio.to_thread(a.exchange, "step", bytes(BIG)))
    await asyncio.sleep(0.1)
    assert not writing.done()
    a.close()
    async with asyncio.timeout(20):
        with pytest.raises(ChannelClosedError):
            await writing
    b.close()


# Who gets in


def raw(at_b: LaneListener, pki: Pki, name: str | None) -> ssl.SSLSocket:
    """A connection to B as the holder of `name`'s certificate, or of none, who has got hold of the token."""
    context = ssl.create_default_context(cafile=str(pki.authority))
    context.check_hostname = False
    if name is not None:
        tls = pki.tls(name)
        context.load_cert_chain(tls.certificate, tls.key)
    connection = socket.create_connection(("127.0.0.1", at_b.port), timeout=5)
    connection.sendall(answer_to(connection.recv(CHALLENGE_BYTES, socket.MSG_WAITALL), at_b.token))
    return context.wrap_socket(connection)


@pytest.mark.parametrize("name", ["alice", "operator", "dealer", "aggregator-b", None])
@asynchronous
async def test_only_server_a_gets_in(pki: Pki, name: str | None) -> None:
    """Every other certificate of the same authority, and none at all, is refused, whatever its holder knows; A comes in
    afterwards."""
    at_b = listener(pki)
    accepting = asyncio.create_task(at_b.accept(20))
    await asyncio.sleep(0)

    def answer() -> bytes:
        try:
            with raw(at_b, pki, name) as connection:
                connection.sendall(HEADER.pack(4, 0) + b"step")
                return connection.recv(1)
        except OSError:
            return b""

    assert await asyncio.to_thread(answer) == b""
    assert not accepting.done()
    a = await open_lane("127.0.0.1:1", at_b.port, at_b.token, of_a(pki, pki), 10)
    b = await accepting
    assert await both(lambda: a.exchange("x", b"1"), lambda: b.exchange("x", b"2")) == [b"2", b"1"]
    a.close()
    b.close()


@asynchronous
async def test_an_authority_of_the_same_name_does_not_help(pki: Pki, tmp_path: Path) -> None:
    """Another authority's certificate of aggregator A is not the pinned one, and A does not take another B's."""
    forged = Pki.create(tmp_path / "forged", [])
    at_b = listener(pki)
    accepting = asyncio.create_task(at_b.accept(20))
    with pytest.raises(PeerUnreachableError, match="no lane to aggregator B"):
        await open_lane("127.0.0.1:1", at_b.port, at_b.token, of_a(pki, forged), 10)
    forger = await asyncio.gather(
        open_lane("127.0.0.1:1", at_b.port, at_b.token, of_a(forged, pki), 10),
        return_exceptions=True,
    )
    if isinstance(forger[0], Lane):  # in TLS 1.3 the dialling side learns of a refusal when it reads
        with pytest.raises(ChannelClosedError):
            await asyncio.to_thread(forger[0].exchange, "x", b"")
    assert not accepting.done()
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)


@asynchronous
async def test_a_connection_that_cannot_be_accepted_keeps_nobody_out(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may report an error of the connection, or have no descriptor for it now."""
    accept, errors = (
        socket.socket.accept,
        [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EPROTO, "Protocol")],
    )

    def failing(listening: socket.socket) -> tuple[socket.socket, Any]:
        if errors:
            raise errors.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", failing)
    a, b = await lane_pair(pki)
    assert (a.party, b.party, errors) == (0, 1, [])
    a.close()
    b.close()


@asynchronous
async def test_a_server_that_never_comes_is_an_error_in_time(pki: Pki) -> None:
    at_b = listener(pki)
    with pytest.raises(PeerUnreachableError, match=r"aggregator A opened no lane within 0\.1 s"):
        await at_b.accept(0.1)
    with pytest.raises(PeerUnreachableError, match="no lane to aggregator B"):
        await open_lane("127.0.0.1:1", at_b.port, at_b.token, of_a(pki, pki), 10)


@pytest.mark.parametrize("port", [0, 65_536, 2**32 - 1])
@asynchronous
async def test_a_port_that_is_none_is_refused(pki: Pki, port: int) -> None:
    """As B's hello may say; it is a uint32 there."""
    with pytest.raises(
        MalformedMessageError, match=rf"lane_port of aggregator B's hello: expected 1 to 65535, found {port}"
    ):
        await open_lane("127.0.0.1:1", port, bytes(32), of_a(pki, pki), 10)


@pytest.mark.parametrize("n_bytes", [0, 31, 33])
@asynchronous
async def test_a_token_that_is_none_is_refused(pki: Pki, n_bytes: int) -> None:
    with pytest.raises(MalformedMessageError, match=f"lane_token of .*: expected 32 bytes, found {n_bytes}"):
        await open_lane("127.0.0.1:1", 1, bytes(n_bytes), of_a(pki, pki), 10)


def test_a_port_that_is_taken_is_an_error_at_once(pki: Pki) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"expected a free one to listen on, found 127.0.0.1:{port}"):
            listener(pki, f"127.0.0.1:{port}")


@asynchronous
async def test_the_port_is_free_again_once_a_has_come(pki: Pki) -> None:
    """Nobody else can connect for the rest of the task."""
    at_b = listener(pki)
    a, b = await asyncio.gather(open_lane("127.0.0.1:1", at_b.port, at_b.token, of_a(pki, pki), 10), at_b.accept(10))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", at_b.port))
    await until(lambda: at_b._listener.fileno() == -1)
    a.close()
    b.close()
