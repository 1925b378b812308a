"""Answers of an operations port that has no end: `precad status` and `watch` give up, and keep nothing of it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from precad.deploy.errors import RunFailedError
from precad.deploy.oversight.status_sources import MAX_LINE, Source, fetch, follow
from tests.harness.harness import asynchronous, free_addresses

PART = b" " * (1 << 20)


class Endless:
    """A server that sends spaces until the other side hangs up."""

    sent = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send."""
        stream = web.StreamResponse()
        await stream.prepare(request)
        self.sent = 0
        try:
            while True:
                await stream.write(PART)
                self.sent += len(PART)
        except ConnectionError:
            return stream


@asynchronous
async def test_an_answer_without_end_is_given_up() -> None:
    app, endless = web.Application(), Endless()
    app.router.add_get("/status.json", endless.answer)
    app.router.add_get("/events", endless.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    (address,) = free_addresses(1)
    host, port = address.split(":")
    await web.TCPSite(runner, host, int(port)).start()
    source = Source("aggregator-a", f"http://{address}", "token")
    try:
        with pytest.raises(RunFailedError, match="expected a status in its answer, found something else"):
            await fetch(source)
        assert endless.sent < 4 * MAX_LINE
        with pytest.raises(RunFailedError):
            await anext(follow(source))
        assert endless.sent < 4 * MAX_LINE
    finally:
        await runner.cleanup()


@asynchronous
async def test_what_an_answer_breaks_is_said_in_a_few_words() -> None:
    """Whoever answers there chooses them."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 80_000)
        with contextlib.suppress(OSError):
            await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    source = Source("aggregator-a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "token")
    with pytest.raises(RunFailedError, match=r"^aggregator-a at ") as caught:
        await fetch(source)
    assert len(str(caught.value)) < 500
    server.close()
