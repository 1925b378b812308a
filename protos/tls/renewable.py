"""Files that their operator may replace while a process runs: what was read last that could be used.

A change is noticed when somebody asks, from a file's inode, time and size. So whoever replaces files renames new ones
over them. When several files that belong together are replaced, one of them is there first. What does not fit is
refused with one log line, and the value before it stays until all of them fit.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Generic, Protocol, TypeVar

RETRY_S = 10.0
"""A refused set of files that does not change is looked at again so often: it may only not be valid yet."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Something that is read from files."""

    def load(self) -> T_co:
        """Return the content, once it was found to be usable."""


class FileSource(Source[T_co], Protocol[T_co]):
    """A source that says which files it reads."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return all of them."""


class LastGood(Generic[T]):
    """The value of a source, read again when one of its files has changed. For several threads.

    Two values that are equal are the same content: nothing is logged.
    """

    def __init__(self, what: str, source: FileSource[T], refusal: type[Exception]) -> None:
        """what: the prefix of its log events. refusal: what `source.load` raises of files that cannot be used.

        Raises the same when there is nothing to begin with."""
        self._refused, self._renewed = f"{what}.refused", f"{what}.renewed"
        self._source, self._refusal = source, refusal
        self._turn = threading.Lock()
        self._seen = _stamps(source.paths)
        self._value = source.load()
        self._retry_at: float | None = None

    def load(self) -> T:
        """Return the latest usable value."""
        with self._turn:
            stamps = _stamps(self._source.paths)
            is_due = self._retry_at is not None and time.monotonic() >= self._retry_at
            if stamps != self._seen or is_due:
                self._reload(is_news=stamps != self._seen)
                self._seen = stamps  # taken before reading: what changes meanwhile is read next time
            return self._value

    def _reload(self, *, is_news: bool) -> None:
        import structlog  # which whoever only reads a configuration does without

        log = structlog.get_logger(__name__)
        try:
            value = self._source.load()
        except self._refusal as error:
            self._retry_at = time.monotonic() + RETRY_S
            if is_news:
                log.error(self._refused, reason=str(error), kept="what was read before")
            return
        self._retry_at = None
        if value != self._value:
            self._value = value
            log.info(self._renewed, files=[str(path) for path in self._source.paths])


def _stamps(paths: tuple[Path, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return, for each path, what changes when its file does; None while it is not there."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
