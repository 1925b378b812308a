"""Threads that share a step's work. Compiled loops, AES and reads of files give Python's lock back meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Threads:
    """The caller's thread and n - 1 others, which are started when they are first needed."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._others = ThreadPoolExecutor(max(1, n - 1), thread_name_prefix="check")

    def map(self, work: Callable[[S], T], parts: Sequence[S]) -> list[T]:
        """Return `work` of each part, in their order, the caller's thread taking the first.

        Nothing is under way any more when it returns or raises. Raises what `work` raises.
        """
        if not parts:
            return []
        under_way = [self._others.submit(work, part) for part in parts[1:]]
        try:
            first = work(parts[0])
        finally:
            wait(under_way)
        return [first, *(one.result() for one in under_way)]


ALONE: Final = Threads(1)
"""The caller's thread, for a step that is in one part."""
