"""Delay the bytes between two programs on one machine, as a long way between two organisations would.

A relay listens at one address and hands on to another what came there, each piece `delay_s` after it came. The other
direction is delayed alike, so a question and its answer take two delays more. Bytes keep their order; no rate is
limited. A kernel that has netem would do better, and not every one has it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

PIECE_BYTES: Final = 1 << 16
BYTES_ON_THE_WAY: Final = 1 << 26
"""In one direction of a connection, beyond which the sender waits: more than a fast line holds in these delays."""
START_TIMEOUT_S: Final = 10.0

Address = tuple[str, int]


class DelayingRelay:
    """Relays in a thread of their own, from entering the block to leaving it."""

    def __init__(self, ways: Sequence[tuple[Address, Address]], delay_s: float) -> None:
        """ways: (where to listen, where to hand on). Raises OSError on entering, where an address is taken."""
        self._ways, self._delay_s = ways, delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        for at, to in self._ways:
            self._servers.append(await asyncio.start_server(partial(self._relay, to), *at))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _relay(self, to: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # asyncio makes one for every connection
        self._connections.add(task)
        try:
            with suppress(OSError):
                onward = await asyncio.open_connection(*to)
                try:
                    await asyncio.gather(self._pass_on(reader, onward[1]), self._pass_on(onward[0], writer))
                finally:
                    onward[1].close()
        finally:
            writer.close()
            self._connections.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand one direction on, and its end."""
        on_the_way = asyncio.Queue[tuple[float, bytes]](BYTES_ON_THE_WAY // PIECE_BYTES)
        sending = asyncio.create_task(self._send(on_the_way, writer))
        try:
            while not sending.done():
                piece = await reader.read(PIECE_BYTES)
                await on_the_way.put((self._loop.time() + self._delay_s, piece))
                if not piece:
                    break
            await sending
        finally:
            sending.cancel()

    async def _send(self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, piece = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if not piece:
                with suppress(OSError):
                    writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()
