"""How a server leaves when it is asked to: after the round in flight, at most so many seconds later, or at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from precad.servers.errors import PeerUnreachableError, StoppedError

log = structlog.get_logger(__name__)


class Drain:
    """Drain of one server, which leaves when it is asked to. For the event loop."""

    def __init__(self, who: str, timeout_s: float, stop: Callable[[], None]) -> None:
        """stop: ends the server at the next possible moment."""
        self._who, self._timeout_s, self._stop = who, timeout_s, stop
        self.is_requested = False

    def request(self, *, is_busy: bool) -> None:
        """SIGTERM. is_busy: whether there is something to finish first. Asked twice, the server stops at once."""
        if self.is_requested or not is_busy or self._timeout_s == 0:
            self.is_requested = True
            self._stop()
            return
        self.is_requested = True
        log.info("server.draining", timeout_s=self._timeout_s)
        asyncio.get_running_loop().call_later(self._timeout_s, self._time_is_up)

    def _time_is_up(self) -> None:
        log.warning("server.drain_timed_out", timeout_s=self._timeout_s)
        self._stop()

    def between_rounds(self) -> None:
        """Nothing is in flight here. Raises StoppedError when the server is to leave."""
        if self.is_requested:
            raise StoppedError(f"{self._who} was stopped by its operator")

    @contextmanager
    def excused(self) -> Iterator[None]:
        """A server that was asked to leave does not complain that others have left. Raises StoppedError then."""
        try:
            yield
        except PeerUnreachableError as error:
            if self.is_requested:
                raise StoppedError(f"{self._who} was stopped by its operator; {error}") from error
            raise
