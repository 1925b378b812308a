"""The connections of each caller: so many, and who opens more is hung up on.

gRPC says whose a connection is when a call comes over it, with its address, and nothing when it goes. So a connection
is its caller's from its first call on, whatever becomes of that call. It remains so for as long as it carries one and
FORGOTTEN_S after it, by when gRPC itself has hung up. A new one takes the place of its caller's connection that has
been without a call for longest. Where all of them carry calls, the new one is refused and hung up on. A connection that
no call was ever made over is nobody's, and does not last longer.

gRPC's servers offer no way to hang up on one connection, so the process shuts the TCP socket down itself. It finds the
socket among its own by the other end's address and our port; gRPC sees it as a client that is gone. The address alone
is not enough: whoever shares it with the other server may call from the port that the lane comes from.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

import structlog

from precad.protos.tls.transport import IDLE_TIME_S
from precad.servers.errors import Limit, OverloadedError

log = structlog.get_logger(__name__)

CROWDED_RETRY_S = 1.0
"""When to ask again for what lasts long: a connection, a place among the open calls."""
FORGOTTEN_S = 2 * IDLE_TIME_S
"""gRPC looks once in IDLE_TIME_S whether a connection had a call since the last time."""
SWEEP_S = 1.0
"""Time between two looks through this process's sockets, which take 20 us for each. A refusal that was just written has
left by then."""
DESCRIPTORS = "/proc/self/fd"

Endpoint: TypeAlias = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


@dataclass(slots=True)
class _Connection:
    n_calls: int
    last_used: float


class Connections:
    """Connections of one server, by caller."""

    def __init__(
        self, max_per_caller: int, hang_up: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        """hang_up: ends the connection of a peer, soon."""
        self._max, self._hang_up, self._now = max_per_caller, hang_up, now
        self._of: dict[str, dict[str, _Connection]] = {}
        self._caller_at: dict[str, str] = {}

    @contextmanager
    def call(self, caller: str, peer: str) -> Iterator[None]:
        """Count a call of this caller while it is open over the connection from `peer`. Raises OverloadedError."""
        connection = self._connection(caller, peer)
        connection.n_calls += 1
        try:
            yield
        finally:
            connection.n_calls -= 1
            connection.last_used = self._now()

    def knows(self, caller: str, peer: str) -> bool:
        """Return whether a call of this caller came over the connection from `peer` before.

        After FORGOTTEN_S without one, gRPC has hung up, and what comes from this address is another connection.
        """
        found = self._of.get(caller, {}).get(peer)
        return found is not None and (found.n_calls > 0 or self._now() - found.last_used <= FORGOTTEN_S)

    def _connection(self, caller: str, peer: str) -> _Connection:
        now, ours = self._now(), self._of.setdefault(caller, {})
        if peer in ours:
            return ours[peer]
        if peer in self._caller_at:  # of somebody who has left: an address is given away again
            self._forget(peer)
        for gone in [p for p, c in ours.items() if not c.n_calls and now - c.last_used > FORGOTTEN_S]:
            self._forget(gone)
        if len(ours) >= self._max:
            self._make_room(ours, peer)
        self._caller_at[peer] = caller
        ours[peer] = _Connection(0, now)
        return ours[peer]

    def _forget(self, peer: str) -> None:
        del self._of[self._caller_at.pop(peer)][peer]

    def _make_room(self, ours: dict[str, _Connection], newcomer: str) -> None:
        idle = [peer for peer, connection in ours.items() if not connection.n_calls]
        if not idle:
            self._hang_up(newcomer)
            raise OverloadedError(
                Limit.CONNECTIONS_OF_CALLER,
                f"at most {self._max} connections of one caller",
                retry_after_s=CROWDED_RETRY_S,
            )
        longest_idle = min(idle, key=lambda peer: ours[peer].last_used)
        self._forget(longest_idle)
        self._hang_up(longest_idle)


class HangUps:
    """Ends connections at one port of ours, by the address of whoever is at the other end, all that are due at once."""

    port: int = 0
    """Ours, once it is known. There is no connection at 0."""

    def __init__(self) -> None:
        self._due: set[str] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def __call__(self, peer: str) -> None:
        """On the event loop; peer as gRPC names it."""
        self._due.add(peer)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        while self._due:
            await asyncio.sleep(SWEEP_S)
            due, self._due = self._due, set()
            try:
                ends = {end for peer in due if (end := endpoint_of(peer))}
                n_ended = await asyncio.to_thread(shut_down, ends, self.port)
            except OSError as error:
                self._due |= due
                log.warning("connections.not_ended", wanted=len(due), reason=error.strerror)
            else:
                log.warning("connections.ended", wanted=len(due), ended=n_ended)


def endpoint_of(peer: str) -> Endpoint | None:
    """IP address and port of a peer as gRPC writes it (`ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`); None for others."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return _endpoint(host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") else None


def _endpoint(host: str, port: int) -> Endpoint:
    ip = ipaddress.ip_address(host)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip, port


def shut_down(peers: Collection[Endpoint], own_port: int) -> int:
    """End the TCP connections with these peers at a port of this process, and return how many there were.

    Raises OSError where it has no descriptor left to look at them.

    Each is looked at and ended through a descriptor of our own. So none is mistaken for one that is closed, and its
    number given away, in the meantime.
    """
    ports, n_ended = {port for _, port in peers}, 0
    for name in os.listdir(DESCRIPTORS):
        try:
            with _own_handle(int(name)) as candidate:
                host, port = candidate.getpeername()[:2]
                is_of_one = port in ports and _endpoint(host, port) in peers
                if is_of_one and candidate.getsockname()[1] == own_port:
                    candidate.shutdown(socket.SHUT_RDWR)
                    n_ended += 1
        except OSError as error:  # closed meanwhile, no socket, or one that is not connected
            if error.errno == errno.EMFILE:
                raise
        except (ValueError, TypeError):  # not of an IP address
            continue
    return n_ended


def _own_handle(descriptor: int) -> socket.socket:
    """Another descriptor of the same socket. Raises OSError."""
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
