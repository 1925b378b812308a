"""Server B's side of the lane until server A has come, among any number of strangers who connect to the port.

Every connection gets a challenge (`precad.servers.links.lane_opening`), and only who answers it gets a TLS handshake.
Those without an answer wait in a bounded room (`precad.servers.links.waiting_room`), which one thread looks after
without ever blocking. So a stranger costs 32 bytes and a descriptor for a second, and no thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import hmac
import resource
import secrets
import selectors
import socket
import ssl
import threading
import time
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress

import structlog

from precad.mpc.errors import raised_as
from precad.protos.tls.address import require_free, split_address
from precad.protos.tls.files import TransportError
from precad.protos.tls.renewable import Source
from precad.protos.tls.transport import CONNECT_TIMEOUT_S
from precad.servers.errors import PeerUnreachableError
from precad.servers.links.lane import Lane, reason_of
from precad.servers.links.lane_opening import ANSWER_BYTES, CHALLENGE_BYTES, TOKEN_BYTES, answer_to
from precad.servers.links.waiting_room import Caller, WaitingRoom
from precad.servers.sources import source_of

log = structlog.get_logger(__name__)

ANSWER_S = 1.0
"""From B's accepting a connection to its answer."""
MAX_WAITING = 2048
"""Connections without an answer; fewer where the process may open few files."""
SHARE_OF_FILES = 8
"""One in so many of those that the process may open."""
MAX_HANDSHAKES = 8
"""At once. Only A gets so far, with every try of one meeting."""
BACKLOG = 512
"""Connections that the system holds until they are taken, in order: A may be the last, and must not wait long."""
ACCEPT_BATCH = 64
"""Connections that are taken before those that wait are heard again."""
ACCEPT_RETRY_S = 0.1
"""After a connection that the system could not hand over."""
REPORT_S = 10.0
"""Between two log lines about strangers."""
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class LaneListener:
    """Server B's side until server A has come. Holds its port, and parts with strangers, from the start."""

    def __init__(self, address: str, contexts: Source[ssl.SSLContext]) -> None:
        """Raises TransportError, TlsFileError."""
        require_free(address)
        self._context = contexts.load()
        host, port = split_address(address)
        with raised_as(TransportError, OSError, f"lane_listen: expected an address to listen on, found {address}"):
            self._listener = socket.create_server((host, port), family=_family(host, port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.token = secrets.token_bytes(TOKEN_BYTES)
        """For A and this meeting alone: whoever holds it gets a TLS handshake. Never logged."""
        self._waiting = WaitingRoom(_room())
        self._arrived: Future[Lane] = Future()
        self._is_taken = False
        self._handshakes = ThreadPoolExecutor(MAX_HANDSHAKES, thread_name_prefix="lane")
        self._free_handshakes = threading.BoundedSemaphore(MAX_HANDSHAKES)
        self._n_strangers, self._report_at = 0, 0.0
        self._stop, self._stopped = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        run = contextvars.copy_context().run  # log lines say which server they are of
        self._thread = threading.Thread(target=run, args=(self._receive_callers,), name="lane door", daemon=True)
        self._thread.start()

    async def accept(self, timeout_s: float) -> Lane:
        """Return the first connection that knows the token and shows A's certificate. Raises PeerUnreachableError."""
        try:
            async with asyncio.timeout(timeout_s):
                lane = await asyncio.wrap_future(self._arrived)
                self._is_taken = True
                return lane
        except TimeoutError:
            raise PeerUnreachableError(f"aggregator A opened no lane within {round(timeout_s, 1):g} s") from None
        finally:
            self.close()

    def close(self) -> None:
        """Free the port. A lane that nobody has taken is closed."""
        self._stop.close()
        self._thread.join()
        self._handshakes.shutdown(wait=False, cancel_futures=True)
        if not self._arrived.cancel() and not self._is_taken and self._arrived.exception() is None:
            self._arrived.result().close()

    # In the thread of its own, until `close`

    def _receive_callers(self) -> None:
        try:
            while self._receive_some():
                pass
        except Exception as error:  # noqa: BLE001 - raised again by `accept`
            with suppress(InvalidStateError):
                self._arrived.set_exception(error)
        finally:
            self._report()
            for caller in list(self._waiting):
                self._part_with(caller)
            self._selector.close()
            self._listener.close()
            self._stopped.close()

    def _receive_some(self) -> bool:
        """Wait for something to happen. False when it was `close`. Answers come before newcomers, who might displace
        those that gave them."""
        now = time.monotonic()
        wait_s = next((max(0.0, caller.deadline - now) for caller in self._waiting), None)
        ready = [key for key, _ in self._selector.select(wait_s)]
        if any(key.fileobj is self._stopped for key in ready):
            return False
        for key in ready:
            if key.data is not None and key.data in self._waiting:
                self._hear(key.data)
        for caller in self._waiting.late(time.monotonic()):
            self._turn_out(caller)
        if any(key.fileobj is self._listener for key in ready):
            self._welcome()
        if self._n_strangers and time.monotonic() >= self._report_at:
            self._report()
        return True

    def _welcome(self) -> None:
        """Take in connections that wait at the port. An error is one connection's, or passes: the next may be A's."""
        for _ in range(ACCEPT_BATCH):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR and not self._make_room():
                    log.warning("lane.refused", reason=reason_of(error))
                    time.sleep(ACCEPT_RETRY_S)  # nobody waits whom it would keep waiting
                    return
                continue
            if self._waiting.is_full:
                self._make_room()
            self._challenge(connection, source_of(address[0]))

    def _challenge(self, connection: socket.socket, source: str) -> None:
        caller = Caller(connection, source, secrets.token_bytes(CHALLENGE_BYTES), time.monotonic() + ANSWER_S)
        try:
            connection.setblocking(False)
            if connection.send(caller.challenge) < CHALLENGE_BYTES:
                raise BlockingIOError
            self._selector.register(connection, selectors.EVENT_READ, caller)
        except OSError:
            self._n_strangers += 1
            connection.close()
        else:
            self._waiting.enter(caller)

    def _make_room(self) -> bool:
        """Let one give way that has not answered by now. False when nobody is here."""
        if not len(self._waiting):
            return False
        caller = self._waiting.first_to_give_way()
        self._hear(caller)
        if caller in self._waiting:
            self._turn_out(caller)
        return True

    def _hear(self, caller: Caller) -> None:
        """Take in what there is of its answer, and not a byte of what follows, which is TLS's."""
        try:
            received = caller.connection.recv(ANSWER_BYTES - len(caller.answer))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        caller.answer += received
        if received and len(caller.answer) < ANSWER_BYTES:
            return
        if hmac.compare_digest(answer_to(caller.challenge, self.token), caller.answer):
            self._admit(caller)
        else:
            self._turn_out(caller)

    def _admit(self, caller: Caller) -> None:
        if not self._free_handshakes.acquire(blocking=False):
            self._turn_out(caller)
            return
        self._selector.unregister(caller.connection)
        self._waiting.leave(caller)
        self._handshakes.submit(contextvars.copy_context().run, self._shake_hands, caller.connection)

    def _turn_out(self, caller: Caller) -> None:
        self._n_strangers += 1
        self._part_with(caller)

    def _part_with(self, caller: Caller) -> None:
        self._selector.unregister(caller.connection)
        self._waiting.leave(caller)
        caller.connection.close()

    def _report(self) -> None:
        """Log one line about many."""
        if self._n_strangers:
            log.warning("lane.refused", reason="no answer that shows the token", connections=self._n_strangers)
        self._n_strangers, self._report_at = 0, time.monotonic() + REPORT_S

    # In threads for handshakes

    def _shake_hands(self, connection: socket.socket) -> None:
        lane: Lane | None = None
        try:
            connection.settimeout(CONNECT_TIMEOUT_S)
            lane = Lane(1, self._context.wrap_socket(connection, server_side=True))
            self._arrived.set_result(lane)
        except OSError as error:
            connection.close()
            log.warning("lane.refused", reason=reason_of(error))
        except InvalidStateError:  # another try of A's was first, or nobody waits any more
            assert lane is not None  # only set_result raises it
            lane.close()
        finally:
            self._free_handshakes.release()


def _room() -> int:
    """Return how many connections without an answer this process can afford."""
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WAITING if n_files == resource.RLIM_INFINITY else max(1, min(MAX_WAITING, n_files // SHARE_OF_FILES))


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
