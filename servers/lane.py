"""The lane between the two aggregators: a TLS connection on which MPC's steps go back and forth.

A step costs what its slowest hop costs, and a check makes a dozen of them. On gRPC's stream a message passes two event
loops and four threads; here the thread that computes is the one that writes and reads. Everything else between the
aggregators (hello, relayed uploads, the close of a round, goodbye) stays on the gRPC link (`servers.peer`), over which
B tells A the lane's port. The lane ends with the link.

A frame is the length of its label (2 bytes) and of its payload (8 bytes), big-endian, then both. Both ends show their
certificate and trust exactly the pinned one of the other, as they read when the lane is made.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from mpc.channel import Channel
from mpc.errors import ChannelClosedError, MalformedMessageError, PeerMismatchError
from mpc.sharing import Party
from protos.identity import Role
from protos.last_good import Source
from protos.tls_files import PinFile, TlsContext, TlsFiles, TransportError
from protos.transport import CONNECT_TIMEOUT_S, require_free, split_address
from servers.errors import PeerUnreachableError

log = structlog.get_logger(__name__)

HEADER = struct.Struct(">HQ")
MAX_LABEL_BYTES = 1 << 10
MAX_PAYLOAD_BYTES = 1 << 34
"""Longer than any step that the protocol has; a peer that announces more is out of its mind."""
MAX_HANDSHAKES = 8
"""At once, by whoever connects; only the holder of A's certificate gets further."""
ACCEPT_RETRY_S = 0.1
"""After a connection that the system could not hand over."""
WRITE_BYTES = 1 << 18
MAX_PORT = 65_535
SPIN_S = 300e-6
"""How long a step asks again and again before its thread sleeps: to wake up takes longer than most steps."""
TCP_INFO_BYTES, TCPI_BYTES_SENT = 256, slice(200, 208)
"""Of Linux's struct tcp_info: its length or more, and where its `tcpi_bytes_sent` lies (since 4.19)."""


class CountedChannel(Channel, Protocol):
    """A channel that counts what it writes."""

    @property
    def bytes_sent(self) -> int:
        """So far."""


class Lane:
    """One server's end, for the one thread that does MPC. `close` may be called from any other."""

    def __init__(self, party: Party, connection: ssl.SSLSocket) -> None:
        self._party: Party = party
        self._socket = connection
        self._socket.setblocking(False)
        self._in_use = threading.Lock()
        self._readable, self._writable, self._either = (
            _poll(connection, events) for events in (select.POLLIN, select.POLLOUT, select.POLLIN | select.POLLOUT)
        )
        self._bytes_written = 0

    @property
    def bytes_sent(self) -> int:
        """By our socket: frames, what TLS adds to them (22 bytes to every 16 KiB), and its handshake.

        Where the system does not count them (Linux does), frames alone.
        """
        try:
            info = socket.socket.getsockopt(self._socket, socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            return int.from_bytes(info[TCPI_BYTES_SENT], sys.byteorder) or self._bytes_written
        except (OSError, AttributeError):
            return self._bytes_written

    @property
    def party(self) -> Party:
        """0 for A, 1 for B."""
        return self._party

    def exchange(self, label: str, payload: bytes) -> bytes:
        """See `Channel.exchange`. Reads while it writes, so that two long messages never wait for each other."""
        name, incoming = label.encode(), _Incoming()
        header = HEADER.pack(len(name), len(payload)) + name
        outgoing = (header + payload,) if len(payload) <= WRITE_BYTES else (header, payload)
        with self._in_use:
            try:
                for part in outgoing:
                    self._write(memoryview(part), incoming)
                give_up_spinning = time.perf_counter() + SPIN_S
                while not incoming.is_complete:
                    if not self._read(incoming) and time.perf_counter() > give_up_spinning:
                        self._readable.poll()
            except (OSError, ValueError) as error:  # ValueError: closed before we came
                raise ChannelClosedError(f"the other aggregator left, at step {label!r}") from error
        if incoming.label != label:
            raise PeerMismatchError("protocol step", ours=label, peers=incoming.label)
        return bytes(incoming.payload)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """See `Channel.exchange_pieces`. A frame for each."""
        for piece in pieces:
            yield self.exchange(label, piece)

    def _write(self, data: memoryview, incoming: _Incoming) -> None:
        while data:
            try:
                n_sent = self._socket.send(data[:WRITE_BYTES])
            except ssl.SSLWantWriteError:  # the peer is writing as well, and has no room until we read
                if incoming.is_complete:
                    self._writable.poll()
                elif not self._read(incoming):
                    self._either.poll()
                continue
            data = data[n_sent:]
            self._bytes_written += n_sent

    def _read(self, incoming: _Incoming) -> bool:
        """Takes in what is there; False when nothing is. Raises OSError at the end of the stream."""
        try:
            n_read = self._socket.recv_into(incoming.wanted)
        except ssl.SSLWantReadError:
            return False
        if n_read == 0:
            raise ConnectionResetError("end of stream")
        incoming.advance(n_read)
        return True

    def close(self) -> None:
        """Ends the lane; whoever waits in `exchange`, here or there, raises ChannelClosedError."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of the TCP socket: TLS is the other thread's
        with self._in_use:
            self._socket.close()


def _poll(connection: ssl.SSLSocket, events: int) -> select.poll:
    poll = select.poll()
    poll.register(connection, events)
    return poll


class _Incoming:
    """A frame as it arrives. Its memory is the announced length's, once the header is plausible."""

    def __init__(self) -> None:
        self._buffer = bytearray(HEADER.size)
        self.wanted = memoryview(self._buffer)
        """Where the next bytes go."""
        self._part = 0
        self.label, self.payload = "", bytearray()
        self.is_complete = False

    def advance(self, n_read: int) -> None:
        """n_read bytes were put in `wanted`. Raises MalformedMessageError, PeerMismatchError."""
        self.wanted = self.wanted[n_read:]
        while not self.wanted and not self.is_complete:
            self._finish_part()

    def _finish_part(self) -> None:
        if self._part == 0:
            self._n_label, self._n_payload = HEADER.unpack(self._buffer)
            if self._n_label > MAX_LABEL_BYTES or self._n_payload > MAX_PAYLOAD_BYTES:
                raise PeerMismatchError("length of a step", ours=f"<= {MAX_PAYLOAD_BYTES}", peers=self._n_payload)
            self._buffer = bytearray(self._n_label)
        elif self._part == 1:
            try:
                self.label = self._buffer.decode()
            except UnicodeDecodeError:
                raise MalformedMessageError("a step's label is not text") from None
            self._buffer = self.payload = bytearray(self._n_payload)
        self._part += 1
        self.is_complete = self._part == 3
        self.wanted = memoryview(self._buffer if not self.is_complete else b"")


def lane_context(party: Party, tls: TlsFiles, pinned: Path) -> TlsContext:
    """What a server shows and trusts on the lane; pinned: the other one's certificate."""
    role = Role.AGGREGATOR_B if party == 0 else Role.AGGREGATOR_A
    return TlsContext(tls=tls, pinned=PinFile(pinned, role), server_side=party == 1)


class LaneListener:
    """Server B's side until server A has come. Holds its port from the start: a taken one is an error at once."""

    def __init__(self, address: str, contexts: Source[ssl.SSLContext]) -> None:
        """Raises TransportError, TlsFileError."""
        require_free(address)
        self._context = contexts.load()
        host, port = split_address(address)
        try:
            self._listener = socket.create_server((host, port), family=_family(host, port))
        except OSError as error:
            raise TransportError(
                f"lane_listen: expected an address to listen on, found {address}: {error.strerror}"
            ) from None
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    async def accept(self, timeout_s: float) -> Lane:
        """The first connection that shows A's certificate. Raises PeerUnreachableError."""
        arrived: asyncio.Queue[Lane] = asyncio.Queue()
        accepting = asyncio.create_task(self._accept(arrived))
        try:
            async with asyncio.timeout(timeout_s):
                return await arrived.get()
        except TimeoutError:
            raise PeerUnreachableError(f"aggregator A opened no lane within {round(timeout_s, 1):g} s") from None
        finally:
            accepting.cancel()
            self.close()

    async def _accept(self, arrived: asyncio.Queue[Lane]) -> None:
        loop, free = asyncio.get_running_loop(), asyncio.Semaphore(MAX_HANDSHAKES)
        threads = ThreadPoolExecutor(MAX_HANDSHAKES, thread_name_prefix="lane")

        async def welcome(connection: socket.socket) -> None:
            try:
                arrived.put_nowait(await loop.run_in_executor(threads, self._handshake, connection))
            except OSError as error:
                connection.close()
                log.warning("lane.refused", reason=_reason(error))
            finally:
                free.release()

        try:
            async with asyncio.TaskGroup() as handshakes:
                while await free.acquire():
                    handshakes.create_task(welcome(await self._next_connection()))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _next_connection(self) -> socket.socket:
        """An error is one connection's, or passes: the next one may be A's."""
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                log.warning("lane.refused", reason=_reason(error))
                await asyncio.sleep(ACCEPT_RETRY_S)
            else:
                return connection

    def _handshake(self, connection: socket.socket) -> Lane:
        connection.settimeout(CONNECT_TIMEOUT_S)
        return Lane(1, _tuned(self._context.wrap_socket(connection, server_side=True)))

    def close(self) -> None:
        """Frees the port."""
        self._listener.close()


async def open_lane(address: str, port: int, contexts: Source[ssl.SSLContext], timeout_s: float) -> Lane:
    """Server A's end, to `port` at the host of B's address.

    Raises: PeerUnreachableError, TlsFileError; MalformedMessageError when B named no port.
    """
    if not 0 < port <= MAX_PORT:
        raise MalformedMessageError(f"lane_port of aggregator B's hello must be in 1..{MAX_PORT}, got {port}")
    context = contexts.load()
    host, _ = split_address(address)

    def connect() -> Lane:
        connection = socket.create_connection((host, port), timeout=min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            return Lane(0, _tuned(context.wrap_socket(connection, server_hostname=Role.AGGREGATOR_B.server_name)))
        except BaseException:
            connection.close()
            raise

    try:
        return await asyncio.to_thread(connect)
    except OSError as error:
        raise PeerUnreachableError(
            f"no lane to aggregator B at {host}:{port}: {_reason(error)}; it must be open to us"
        ) from None


def _tuned(connection: ssl.SSLSocket) -> ssl.SSLSocket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]


def _reason(error: OSError) -> str:
    return getattr(error, "verify_message", None) or getattr(error, "reason", None) or error.strerror or "timed out"
