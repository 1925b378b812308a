"""How the lane between the aggregators opens: server A shows, before TLS, that server B has told it a token.

B tells A a fresh token over the link, which both have authenticated already. On the lane's port B sends every
connection a challenge of its own, and only who answers it gets a TLS handshake. So strangers cost B next to nothing
(`precad.servers.links.lane_listener`). TLS with pinned certificates follows as if there were no token.

    B -> A    challenge, 32 random bytes
    A -> B    HMAC-SHA256 under the token of "precad/v1.1 lane" and the challenge
    A <-> B   TLS

The token never crosses the network in clear, and an answer serves one connection: whoever listens there has nothing to
send again. A that B has no time for, in a flood, connects again.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import socket
import ssl
import time

from precad.mpc.errors import MalformedMessageError
from precad.protos.tls.address import split_address
from precad.protos.tls.identity import Role
from precad.protos.tls.renewable import Source
from precad.protos.tls.transport import CONNECT_TIMEOUT_S
from precad.servers.errors import PeerUnreachableError
from precad.servers.links.lane import Lane, reason_of

TOKEN_BYTES = CHALLENGE_BYTES = ANSWER_BYTES = 32
PURPOSE = b"precad/v1.1 lane"
FIRST_TRY_S, TRY_GROWTH = 0.4, 1.5
"""Until A connects anew, where it gets no challenge. The system itself would try again after 1 s, 2 s, 4 s."""
NEXT_TRY_S = 0.05
"""From one try of A's to the next."""
MAX_PORT = 65_535
_TRY_AGAIN = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)


def answer_to(challenge: bytes, token: bytes) -> bytes:
    """Return what the holder of the token says, once, on the connection that was so challenged."""
    return hmac.digest(token, PURPOSE + challenge, hashlib.sha256)


async def open_lane(address: str, port: int, token: bytes, contexts: Source[ssl.SSLContext], timeout_s: float) -> Lane:
    """Open server A's end, to `port` at the host of B's address, as the holder of the token of B's hello.

    Raises: PeerUnreachableError, TlsFileError; MalformedMessageError when B named no port, or no token.
    """
    if not 0 < port <= MAX_PORT:
        raise MalformedMessageError(f"lane_port of aggregator B's hello: expected 1 to {MAX_PORT}, found {port}")
    if len(token) != TOKEN_BYTES:
        raise MalformedMessageError(
            f"lane_token of aggregator B's hello: expected {TOKEN_BYTES} bytes, found {len(token)}"
        )
    context = contexts.load()
    host, _ = split_address(address)
    try:
        return await asyncio.to_thread(_open, host, port, token, context, min(timeout_s, CONNECT_TIMEOUT_S))
    except OSError as error:
        raise PeerUnreachableError(
            f"no lane to aggregator B at {host}:{port}: {reason_of(error)}; it must be open to us"
        ) from None


def _open(host: str, port: int, token: bytes, context: ssl.SSLContext, timeout_s: float) -> Lane:
    """Tries again while B's port is there and has no time for us. Raises OSError."""
    deadline, patience_s = time.monotonic() + timeout_s, FIRST_TRY_S
    while True:
        try:
            connection = _admitted(host, port, token, min(deadline, time.monotonic() + patience_s))
            try:
                connection.settimeout(_left_s(deadline))
                return Lane(0, context.wrap_socket(connection, server_hostname=Role.AGGREGATOR_B.server_name))
            except BaseException:
                connection.close()
                raise
        except _TRY_AGAIN:
            if time.monotonic() + NEXT_TRY_S >= deadline:
                raise
        patience_s *= TRY_GROWTH
        time.sleep(NEXT_TRY_S)


def _admitted(host: str, port: int, token: bytes, deadline: float) -> socket.socket:
    """Return a connection on which B's challenge is answered. Raises OSError."""
    connection = socket.create_connection((host, port), timeout=_left_s(deadline))
    try:
        challenge = b""
        while len(challenge) < CHALLENGE_BYTES:
            connection.settimeout(_left_s(deadline))
            received = connection.recv(CHALLENGE_BYTES - len(challenge))
            if not received:
                raise ConnectionResetError(errno.ECONNRESET, "it hung up before its challenge")
            challenge += received
        connection.sendall(answer_to(challenge, token))
    except BaseException:
        connection.close()
        raise
    return connection


def _left_s(deadline: float) -> float:
    """Raises TimeoutError."""
    if (left_s := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s
