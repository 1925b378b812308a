"""Every log line of a server says which server, task and round it is about, wherever it is written.

A context variable binds not the values but where to find them. It is set before the server starts, so it reaches the
tasks of all its calls. Those are also calls that began before there was a task or a round.

What callers can have written as often as they like is written once in a while, with the number of what was left out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar

from structlog import DropEvent
from structlog.typing import EventDict, WrappedLogger

About = Callable[[], Mapping[str, object]]

OF_CALLERS = frozenset(
    {
        *("call.refused", "call.failed", "client.joined", "client.left", "client.lost"),
        *("connections.ended", "connections.not_ended", "lane.refused"),
    }
)
"""Events that each call, or connection, of a caller can cause, or a server that takes its client in and hangs up."""
_ALIKE = ("event", "call", "caller", "code", "client", "server")
"""Lines that agree in these are alike."""
QUIET_S = 10.0
"""How long a line keeps those that are alike out of the log."""
MAX_KINDS = 4096
"""Kinds of lines that are remembered; the oldest make room."""

_about: ContextVar[About | None] = ContextVar("about", default=None)


def bind(about: About) -> None:
    """Log about this from now on, in this task and those that it starts."""
    _about.set(about)


def add_context(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Add what is known, and leave what the event says itself. A structlog processor."""
    if (about := _about.get()) is not None:
        for key, value in about().items():
            event.setdefault(key, value)
    return event


class Throttle:
    """A structlog processor: one line of a kind of `OF_CALLERS` in QUIET_S. It says how many were left out before."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kinds: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        """For each kind: the time until which it is left out, and how many lines were."""

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        """Raises structlog.DropEvent for a line that is left out."""
        if event["event"] not in OF_CALLERS:
            return event
        kind, now = tuple(str(event.get(field, "")) for field in _ALIKE), self._now()
        until, n_left_out = self._kinds.get(kind, (now, 0))
        if now < until:
            self._kinds[kind] = until, n_left_out + 1
            raise DropEvent
        self._kinds[kind] = now + QUIET_S, 0
        self._kinds.move_to_end(kind)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return {**event, "left_out": n_left_out} if n_left_out else event
