"""Connections of an HTTP server under attack: failure is one that says nothing and stays."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest
from aiohttp import web

from precad.protos.tls.identity import Role
from precad.servers.operations.doorway import Doorway
from tests.harness.harness import Pki, asynchronous, until

SILENT_S = 0.5


class _Stalls:
    """A client that keeps the last part of its handshake back."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._in, self._out, server_hostname=Role.DEALER.server_name)
        self.connection, self.began = socket.create_connection(("127.0.0.1", port)), time.monotonic()

    def begin(self) -> None:
        """Shake hands but for what the client has to say last."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.connection.sendall(self._out.read())
                self._in.write(self.connection.recv(1 << 16))
            else:
                return

    def end(self) -> None:
        """Say it."""
        self.connection.sendall(self._out.read())


@pytest.mark.parametrize("last_s", [0.0, 1.3 * SILENT_S])
@asynchronous
async def test_a_handshake_that_ends_as_its_time_does_leaves_no_silent_connection(
    tmp_path: Path, last_s: float
) -> None:
    """Its own time begins a moment after the connection's, where the loop is busy. Whoever knows that comes between."""
    pki = Pki.create(tmp_path, [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki.tls(Role.DEALER).load_into(context)
    own = ssl.create_default_context(cafile=str(pki.tls(Role.DEALER).authority))
    runner, loop = web.AppRunner(web.Application()), asyncio.get_running_loop()
    await runner.setup()
    assert runner.server is not None
    handlers, make = runner.server, runner.server.__call__

    def busy(_: web.Server) -> web.RequestHandler:
        loop.call_soon(time.sleep, 0.6 * SILENT_S)
        return make()

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(web.Server, "__call__", busy)
        accepting = asyncio.create_task(Doorway(4, SILENT_S).accept(listener, runner, lambda: context))
        client = await asyncio.to_thread(_Stalls, listener.getsockname()[1], own)
        await asyncio.to_thread(client.begin)
        await asyncio.sleep(client.began + last_s - time.monotonic())
        await asyncio.to_thread(client.end)
        await asyncio.sleep(client.began + 3 * SILENT_S - time.monotonic())
        with contextlib.suppress(TimeoutError):  # it hangs up a little later where the machine stalls
            async with asyncio.timeout(15):
                await until(lambda: not handlers.connections)
        n_left = len(handlers.connections)
        accepting.cancel()
        await asyncio.wait([accepting])
    client.connection.close()
    await runner.cleanup()
    assert n_left == 0
