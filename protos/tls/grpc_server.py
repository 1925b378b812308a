"""gRPC's server on asyncio, which no name of a method ends, and whose end is noticed.

Since 1.84, gRPC decodes the name of a method that nobody registered where it takes calls in. A name that is no UTF-8
ends the server there: its port is closed, its streams are cut, and the process goes on without them. One frame of
whoever holds any certificate would do. Earlier versions decode the name in the call, which alone fails.

So calls of such methods are answered here, and nobody reads what they name. There is no interface of gRPC's to that.
This is made for the versions that take registered methods in by themselves, and leaves others as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NoReturn, cast

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

LACKING: Final = "/a method that this server lacks"
"""Its name to interceptors and log lines."""
_TAKES_REGISTERED: Final = hasattr(cygrpc.AioServer, "_request_registered_call")


def make_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]
) -> grpc.aio.Server:
    """Return a server on the running event loop. It serves registered methods, as generated code registers them."""
    if not _TAKES_REGISTERED:
        return grpc.aio.server(interceptors=interceptors, options=options)
    return cast("grpc.aio.Server", _Server(interceptors, options))


async def until_ended(server: grpc.aio.Server) -> None:
    """Return once a server that was started takes no more calls in: it was stopped, or gRPC failed.

    gRPC's own interface to that waits for open calls as well, and whoever made gRPC fail may keep one open.
    """
    if isinstance(server, _Server):
        await server.core.has_ended.wait()
    else:  # no one cancels this: gRPC waits for a future of its own, which would be cancelled with it
        await asyncio.wait((asyncio.create_task(server.wait_for_termination()),))


class _Server(_server.Server):
    """Differs in its core alone."""

    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]) -> None:
        self._loop = asyncio.get_running_loop()
        self.core = self._server = _Core(self._loop, tuple(interceptors), tuple(options))


class _Core(cygrpc.AioServer):  # type: ignore[misc] # without annotations
    """Answers calls that no registered method takes, instead of handing them on to be decoded."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...],
        options: tuple[tuple[str, int], ...],
    ) -> None:
        super().__init__(loop, None, (), interceptors, options, None)
        self._on, self._behind, self._nothing = loop, interceptors, cygrpc._MethodResolver([], {})
        self._answering: set[asyncio.Task[None]] = set()
        self.has_ended = asyncio.Event()

    async def _server_main_loop(self, has_started: object) -> None:
        """Take calls in until the server is stopped, and note the end, however it comes."""
        try:
            await super()._server_main_loop(has_started)
        finally:
            self.has_ended.set()

    async def _request_call(self) -> NoReturn:
        """Take calls in for as long as gRPC waits for one, and give it none."""
        while True:
            self._answer(await super()._request_call())

    def _answer(self, call: Any) -> None:
        """Have the interceptors refuse it, as gRPC does with its own."""
        handled = cygrpc._handle_rpc(LACKING, self._nothing, self._behind, call, self._on, False)
        task = self._on.create_task(cygrpc._schedule_rpc_coro(handled, call, self._on, LACKING))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
