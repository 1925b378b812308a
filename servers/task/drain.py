"""How a server leaves when it is asked to: after the round in flight, at most so many seconds later, or at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import structlog

from precad.servers.config import ServerConfig
from precad.servers.errors import PeerUnreachableError, StoppedError
from precad.servers.supervision import guarded
from precad.servers.telemetry.events import Telemetry

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Drain:
    """Drain of one server, which leaves when it is asked to. For the event loop."""

    def __init__(self, who: str, timeout_s: float, telemetry: Telemetry) -> None:
        self._why, self._timeout_s, self._telemetry = f"{who} was stopped by its operator", timeout_s, telemetry
        self._stop = asyncio.Event()
        self._ends_the_task = False

    @property
    def is_requested(self) -> bool:
        """Return whether the server was asked to leave."""
        return self._telemetry.is_draining

    def stop(self) -> None:
        """End the server at the next possible moment (SIGINT)."""
        self._stop.set()

    async def until_stopped(self, work: Coroutine[None, None, T]) -> T:
        """Return the work's result. Raises StoppedError when the operator stops this process first."""

        async def stopped() -> None:
            await self._stop.wait()
            raise StoppedError(self._why)

        return await guarded(work, stopped())

    def request(self, *, is_busy: bool) -> None:
        """SIGTERM. is_busy: whether there is something to finish first. Asked twice, the server stops at once."""
        was_requested, self._telemetry.is_draining = self.is_requested, True
        if was_requested or not (is_busy or self._ends_the_task) or self._timeout_s == 0:
            self.stop()
            return
        log.info("server.draining", timeout_s=self._timeout_s)
        asyncio.get_running_loop().call_later(self._timeout_s, self._time_is_up)

    def ends_the_task(self) -> None:
        """Note that all that is left is to say goodbye, at its time: who asks the server to leave waits for it."""
        self._ends_the_task = True

    def _time_is_up(self) -> None:
        log.warning("server.drain_timed_out", timeout_s=self._timeout_s)
        self.stop()

    def between_rounds(self) -> None:
        """Leave where nothing is in flight. Raises StoppedError when the server is to leave."""
        if self.is_requested:
            raise StoppedError(self._why)

    async def linger(self, config: ServerConfig) -> None:
        """Keep the operations port of a server whose task is over for `operations_linger_s`, or until a signal."""
        self._ends_the_task = False
        if config.operations_listen is None or config.operations_linger_s == 0 or self.is_requested:
            return
        log.info("operations.lingers", timeout_s=config.operations_linger_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(config.operations_linger_s):
                await self._stop.wait()

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Raise StoppedError instead where others have left a server that was asked to leave itself."""
        try:
            yield
        except PeerUnreachableError as error:
            if self.is_requested:
                raise StoppedError(f"{self._why}; {error}") from error
            raise
