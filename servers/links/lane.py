"""The lane between the two aggregators: a TLS connection on which MPC's steps go back and forth.

A step costs what its slowest hop costs, and a check makes a dozen of them. On gRPC's stream a message passes two event
loops and four threads; here the thread that computes is the one that writes and reads. Everything else between the
aggregators stays on the gRPC link (`precad.servers.links.peer`): hello, relayed uploads, the close of a round, goodbye.
Over that link B tells A where the lane opens (`precad.servers.links.lane_opening`). The lane ends with the link.

A frame is the length of its label (2 bytes) and of its payload (8 bytes), big-endian, then both. Both ends show their
certificate and trust exactly the pinned one of the other, as they read when the lane is made.

A pinned peer may deviate all the same. No memory is taken for a payload longer than the step can need. At most one
record of TLS (16 KiB) is held of what the peer sends ahead of us. Where the lane is sealed
(`precad.servers.links.lane_seal`), it is one record of 64 KiB. The rest fills the socket's buffer, then stays with the
peer. The lane ends when the peer's part of a step has not come within the step's limit
(`precad.servers.links.step_limits`). A second thread sees to that too. The library of TLS does not come back from
reading for as long as a peer sends it new keys.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from precad.mpc.channel import Channel, require_at_most
from precad.mpc.errors import ChannelClosedError, MalformedMessageError, PeerMismatchError
from precad.mpc.sharing import Party
from precad.protos.tls.files import PinFile, TlsContext, TlsFiles
from precad.protos.tls.identity import AGGREGATORS
from precad.servers.errors import PeerLateError
from precad.servers.links.lane_seal import Connection, SealedConnection
from precad.servers.links.step_limits import StepLimits

HEADER = struct.Struct(">HQ")
MAX_LABEL_BYTES = 1 << 10
WRITE_BYTES = 1 << 18
SPIN_S, LEAST_SPIN_S = 300e-6, 15e-6
"""How long a step asks again and again before its thread sleeps, at most and at least: to wake up takes longer than
most steps. A step that sleeps all the same leaves the next one a quarter of its time, one that spins in success twice
as much."""
LONGEST_SLEEP_S = 86_400.0
"""In one call of poll, which counts milliseconds in 32 bits."""
LOOK_S = 0.5
"""Between two looks at a step's deadline from outside. One that is over at two of them ends the lane."""
TCP_INFO_BYTES, TCPI_BYTES_SENT = 256, slice(200, 208)
"""Length of Linux's struct tcp_info, or more, and where its `tcpi_bytes_sent` lies (since 4.19)."""


class CountedChannel(Channel, Protocol):
    """A channel that counts what it writes."""

    @property
    def bytes_sent(self) -> int:
        """Count the bytes that were sent so far."""


class Lane:
    """One server's end, for the one thread that does MPC. `close` may be called from any other."""

    def __init__(self, party: Party, connection: ssl.SSLSocket) -> None:
        self.party: Party = party
        """0 for A, 1 for B."""
        self._socket = connection
        self._stream: Connection = connection
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in_use = threading.Lock()
        self._readable, self._writable, self._either = (
            _poll(connection, events) for events in (select.POLLIN, select.POLLOUT, select.POLLIN | select.POLLOUT)
        )
        self._bytes_written = 0
        self._deadline = math.inf
        self._guard: threading.Thread | None = None
        self._is_closed = threading.Event()
        self.spin_s = SPIN_S
        """How long the next step spins at most."""
        self.limits = StepLimits()
        """On the other server's part of each step; none before the servers have met."""

    def seal(self, keys: tuple[bytes, bytes]) -> None:
        """Encrypt every step a second time. keys: of `lane_seal.keys_of`, for this lane alone."""
        self._stream = SealedConnection(self._socket, keys)

    @property
    def bytes_sent(self) -> int:
        """Count what our socket sent: frames, what TLS adds to them (22 bytes to every 16 KiB), and its handshake.

        A sealed lane sends 20 bytes more for each record of 64 KiB at most.

        Where the system does not count them (Linux does), frames alone.
        """
        try:
            info = socket.socket.getsockopt(self._socket, socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            return int.from_bytes(info[TCPI_BYTES_SENT], sys.byteorder) or self._bytes_written
        except (OSError, AttributeError):
            return self._bytes_written

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`. Reads while it writes, so that two long messages never wait for each other."""
        return self._exchange(_Step(label), payload, at_most)

    def _exchange(self, step: _Step, payload: bytes, at_most: int | None) -> bytes:
        label = step.label
        name, incoming = label.encode(), _Incoming(label, len(payload) if at_most is None else at_most)
        header = HEADER.pack(len(name), len(payload)) + name
        outgoing = (header + payload,) if len(payload) <= WRITE_BYTES else (header, payload)
        step.n_bytes += len(payload) + incoming.at_most
        limit_s = self.limits.seconds(label, step.n_bytes)
        with self._in_use, step.waiting():
            self._deadline = deadline = time.monotonic() + limit_s - step.waited_s
            self._be_guarded()
            try:
                for part in outgoing:
                    self._write(memoryview(part), incoming)
                self._read_all(incoming)
            except (_LateError, OSError, ValueError) as error:  # ValueError: closed before we came
                if time.monotonic() < deadline:
                    raise ChannelClosedError(f"the other aggregator left, at step {label!r}") from error
                self._hang_up()  # half of a frame may have come, and half of ours may have left
                raise PeerLateError(
                    f"step {label!r}: expected the part of {AGGREGATORS[1 - self.party]} within {limit_s:g} s, "
                    f"found {incoming.n_read} bytes of it"
                ) from None
            finally:
                self._deadline = math.inf
        if incoming.label != label:
            raise PeerMismatchError("protocol step", ours=label, peers=incoming.label)
        return bytes(incoming.payload)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """See `Channel.exchange_pieces`. A frame for each, and one limit for all."""
        step = _Step(label)
        for piece in pieces:
            yield self._exchange(step, piece, at_most)

    def _read_all(self, incoming: _Incoming) -> None:
        """Read what is left of a frame. Spins as long as that has paid lately, then sleeps."""
        until, has_spun, has_slept = time.perf_counter() + self.spin_s, False, False
        while not incoming.is_complete:
            if self._read(incoming):
                continue
            if has_slept or time.perf_counter() > until:
                self._wait(self._readable)
                has_slept = True
            has_spun = True
        if has_slept:
            self.spin_s = max(LEAST_SPIN_S, self.spin_s / 4)
        elif has_spun:
            self.spin_s = min(SPIN_S, self.spin_s * 2)

    def _write(self, data: memoryview, incoming: _Incoming) -> None:
        while data:
            try:
                n_sent = self._stream.send(data[:WRITE_BYTES])
            except ssl.SSLWantWriteError:  # the peer is writing as well, and has no room until we read
                if incoming.is_complete:
                    self._wait(self._writable)
                elif not self._read(incoming):
                    self._wait(self._either)
                continue
            data = data[n_sent:]
            self._bytes_written += n_sent

    def _wait(self, ready: select.poll) -> None:
        """Sleeps until there is something to do. Raises _LateError at the step's deadline."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise _LateError
        ready.poll(None if left_s == math.inf else math.ceil(1000 * min(left_s, LONGEST_SLEEP_S)))

    def _read(self, incoming: _Incoming) -> bool:
        """Take in what is there; False when nothing is. Raises OSError at the end of the stream."""
        try:
            n_read = self._stream.recv_into(incoming.wanted)
        except ssl.SSLWantReadError:
            return False
        if n_read == 0:
            raise ConnectionResetError("end of stream")
        incoming.advance(n_read)
        return True

    def _be_guarded(self) -> None:
        """Start the thread that looks at deadlines, with the first step that has one."""
        if self._guard is None and self._deadline < math.inf:
            self._guard = threading.Thread(target=self._look_at_deadlines, name="lane guard", daemon=True)
            self._guard.start()

    def _look_at_deadlines(self) -> None:
        """End the lane where a step is late and its thread, in the library of TLS, does not see that."""
        late = math.inf
        while not self._is_closed.wait(LOOK_S):
            deadline = self._deadline
            is_late = time.monotonic() >= deadline
            if is_late and deadline == late:
                self._hang_up()
            late = deadline if is_late else math.inf

    def close(self) -> None:
        """End the lane; whoever waits in `exchange`, here or there, raises ChannelClosedError."""
        self._is_closed.set()
        self._hang_up()
        with self._in_use:
            self._socket.close()

    def _hang_up(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of the TCP socket: TLS is the computing thread's


def _poll(connection: ssl.SSLSocket, events: int) -> select.poll:
    poll = select.poll()
    poll.register(connection, events)
    return poll


@dataclass(slots=True)
class _Step:
    """A step, of one frame or of several."""

    label: str
    n_bytes: int = 0
    """Bytes of both servers' frames so far, at most."""
    waited_s: float = 0.0
    """Seconds in these frames. What we compute between them is not the other server's time."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a frame."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited_s += time.monotonic() - began


class _LateError(Exception):
    """A step's limit has passed. (A TimeoutError would be TCP's own.)"""


class _Incoming:
    """A frame as it arrives. Its memory is the announced length's, once that is found to be within `at_most`."""

    def __init__(self, due: str, at_most: int) -> None:
        """due: the label of the step."""
        self._due, self.at_most = due, at_most
        self.n_read = 0
        self._buffer = bytearray(HEADER.size)
        self.wanted = memoryview(self._buffer)
        """Where the next bytes go."""
        self._part = 0
        self.label, self.payload = "", bytearray()
        self.is_complete = False

    def advance(self, n_read: int) -> None:
        """Take in n_read bytes that were put in `wanted`. Raises MalformedMessageError, PeerMismatchError."""
        self.wanted = self.wanted[n_read:]
        self.n_read += n_read
        while not self.wanted and not self.is_complete:
            self._finish_part()

    def _finish_part(self) -> None:
        if self._part == 0:
            self._n_label, self._n_payload = HEADER.unpack(self._buffer)
            if self._n_label > MAX_LABEL_BYTES:
                raise MalformedMessageError(f"label: expected at most {MAX_LABEL_BYTES} bytes, found {self._n_label}")
            self._buffer = bytearray(self._n_label)
        elif self._part == 1:
            self.label = _text_of(self._buffer)
            if self._n_payload > self.at_most and self.label != self._due:
                raise PeerMismatchError("protocol step", ours=self._due, peers=self.label)
            require_at_most(self._due, self._n_payload, self.at_most)
            self._buffer = self.payload = bytearray(self._n_payload)
        self._part += 1
        self.is_complete = self._part == 3
        self.wanted = memoryview(self._buffer if not self.is_complete else b"")


def _text_of(label: bytearray) -> str:
    """Return a step's label, which our errors name. Raises MalformedMessageError unless it is one line of text."""
    with suppress(UnicodeDecodeError):
        if (text := label.decode()).isprintable():
            return text
    raise MalformedMessageError("a step's label is not text")


def lane_context(party: Party, tls: TlsFiles, pinned: Path) -> TlsContext:
    """Return what a server shows and trusts on the lane; pinned: the other one's certificate."""
    return TlsContext(tls=tls, pinned=PinFile(pinned, AGGREGATORS[1 - party]), server_side=party == 1)


def reason_of(error: OSError) -> str:
    """Say why a lane did not come about, in a few words."""
    return getattr(error, "verify_message", None) or getattr(error, "reason", None) or error.strerror or "timed out"
