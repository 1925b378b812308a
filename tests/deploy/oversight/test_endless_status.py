"""Answers of an operations port that has no end: `precad status` and `watch` give up, and keep nothing of it."""

from __future__ import annotations

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
