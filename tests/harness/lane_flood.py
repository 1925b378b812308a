"""Strangers at a port, in a process of their own: `python lane_flood.py PORT HOW N`, until stdin ends.

N connections at any time, each opened anew when the other side hangs up. Prints a line when all N have been made once,
and at the end how many it made in all. Imports nothing of ours: it starts at once.

    silent    nothing is ever said
    hello     a valid ClientHello, and no more
    garbage   64 random bytes
    guess     the challenge is read, and answered under a token that was made up
    drip      a random byte every 50 ms
    churn     hung up on by us as soon as they stand, and opened anew, from addresses 127.1.x.y
    sources   silent ones from addresses 127.1.x.y, each from one of its own
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import ssl
import sys
import time

CHALLENGE_BYTES = 32
DRIP_S = 0.05


def client_hello() -> bytes:
    """Return the hello of a TLS 1.3 client, as OpenSSL makes it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="aggregator-b.precad")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a peer")


class Flood:
    """All of its connections."""

    def __init__(self, port: int, how: str, n: int) -> None:
        self._port, self._how, self._n = port, how, n
        self._hello = client_hello()
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._open: dict[socket.socket, None] = {}
        self.n_made = 0

    def run(self) -> None:
        """Until stdin ends."""
        is_ready, drip_at = False, 0.0
        while True:
            while len(self._open) < self._n and self._connect():
                pass
            if not is_ready and self.n_made >= self._n:
                is_ready = True
                print("ready", flush=True)
            for key, _ in self._selector.select(0.01):
                if key.fileobj is sys.stdin:
                    return
                self._hear(key.fileobj)
            if self._how == "drip" and time.monotonic() >= drip_at:
                drip_at = time.monotonic() + DRIP_S
                for connection in list(self._open):
                    self._say(connection, os.urandom(1))
            if self._how == "churn":
                for connection in list(self._open):
                    self._drop(connection)

    def _connect(self) -> bool:
        connection = socket.socket()
        try:
            if self._how in ("churn", "sources"):  # or `churn` uses up the ports of the address that A has, too
                connection.bind((f"127.1.{self.n_made // 250 % 250}.{self.n_made % 250 + 1}", 0))
            connection.settimeout(1)
            connection.connect(("127.0.0.1", self._port))
            if connection.getsockname() == connection.getpeername():
                raise ConnectionRefusedError  # nobody listens, and the system joined it to itself
        except OSError:  # nobody listens yet, or any more, or we were hung up on already
            connection.close()
            return False
        connection.setblocking(False)
        self._open[connection] = None
        self.n_made += 1
        self._selector.register(connection, selectors.EVENT_READ)
        if self._how in ("hello", "garbage"):
            self._say(connection, self._hello if self._how == "hello" else os.urandom(64))
        return True

    def _hear(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(connection)
        elif self._how == "guess" and len(received) == CHALLENGE_BYTES:
            self._say(connection, hmac.digest(os.urandom(32), b"precad/v1.1 lane" + received, "sha256"))

    def _say(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.send(data)
        except OSError:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if connection in self._open:
            del self._open[connection]
            self._selector.unregister(connection)
            connection.close()


if __name__ == "__main__":
    flood = Flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    flood.run()
    print(flood.n_made)
