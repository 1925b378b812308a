"""Every log line of a server says which server, task and round it is about, wherever it is written.

What is bound is not the values but where to find them: a context variable that is set before the server starts reaches
the tasks of all its calls, also those that began before there was a task or a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

from structlog.typing import EventDict, WrappedLogger

About = Callable[[], Mapping[str, object]]

_about: ContextVar[About | None] = ContextVar("about", default=None)


def bind(about: About) -> None:
    """From now on, in this task and those that it starts."""
    _about.set(about)


def add_context(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """A structlog processor: adds what is known, and leaves what the event says itself."""
    if (about := _about.get()) is not None:
        for key, value in about().items():
            event.setdefault(key, value)
    return event
