"""The connections of an HTTP server of ours: so many, from the moment they are there, and none that says nothing.

asyncio's own server counts none before its TLS handshake is over. So whoever begins handshakes and says nothing would
hold a descriptor for each, and there would be no end to them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias

from aiohttp import web

Contexts: TypeAlias = Callable[[], ssl.SSLContext]
"""Gives what a handshake goes by, and is asked anew for each. A callback for server names would switch as well. But
Python writes a traceback for each name that is no ASCII, and any stranger may send one."""
ACCEPT_RETRY_S: Final = 0.1
"""After a connection that the system could not hand over."""


class Doorway:
    """Takes the connections of one server in."""

    def __init__(self, most: int, silent_s: float) -> None:
        """most: connections at once. silent_s: how long one may be open until it is `heard`, its handshake included."""
        self._most, self._silent_s = most, silent_s
        self._silent: set[asyncio.BaseProtocol] = set()
        self._opening: set[asyncio.Task[None]] = set()
        """Connections whose handshake is not over."""

    def heard(self, protocol: asyncio.BaseProtocol) -> None:
        """Note that a connection has asked for something."""
        self._silent.discard(protocol)

    async def accept(self, listener: socket.socket, runner: web.AppRunner, tls: Contexts | None) -> None:
        """Take connections in until this is cancelled, and hang up on who comes beyond the limit.

        The listener stays the caller's.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while (handlers := runner.server) is not None:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:  # no descriptor is left, or whoever came has gone
                    await asyncio.sleep(ACCEPT_RETRY_S)
                    continue
                if len(handlers.connections) + len(self._opening) >= self._most:
                    connection.close()
                else:
                    task = asyncio.create_task(self._open(connection, handlers, tls))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
                await asyncio.sleep(0)  # a flood must not keep everything else from running
        finally:
            for task in self._opening:
                task.cancel()

    async def _open(self, connection: socket.socket, handlers: web.Server, tls: Contexts | None) -> None:
        """Shake hands, and serve whoever asks for something soon."""
        loop, protocol = asyncio.get_running_loop(), handlers()
        ends = loop.time() + self._silent_s
        self._silent.add(protocol)
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=tls() if tls else None,
                ssl_handshake_timeout=self._silent_s if tls else None,
            )
        except OSError:  # of the handshake
            self._silent.discard(protocol)
        else:  # only now: at a time before its handshake is over, there is nothing to hang up on
            loop.call_at(ends, self._hang_up_if_silent, protocol)

    def _hang_up_if_silent(self, protocol: web.RequestHandler) -> None:
        if protocol in self._silent and protocol.transport is not None:
            protocol.transport.abort()
        self._silent.discard(protocol)
