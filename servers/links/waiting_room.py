"""Connections of whoever, before they have shown that they may be here: a bounded number, each for a bounded time.

Nobody is known yet, so only the address and the order of arrival can decide who gives way when the room is full. The
source that has most connections here loses its oldest one. A flood of one address displaces itself. Where all come from
one address, whoever answers before `capacity` others have come is heard.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Caller:
    """One connection."""

    connection: socket.socket
    source: str
    """As `precad.servers.sources` names it."""
    challenge: bytes
    deadline: float
    """On the monotonic clock."""
    answer: bytearray = field(default_factory=bytearray)


class WaitingRoom:
    """Whoever has not answered yet. All are given the same time, so that the oldest is the first to be late."""

    def __init__(self, capacity: int) -> None:
        """capacity: 1 or more."""
        self._capacity = capacity
        self._callers: dict[Caller, None] = {}
        self._by_source: dict[str, dict[Caller, None]] = {}

    def __contains__(self, caller: Caller) -> bool:
        return caller in self._callers

    def __iter__(self) -> Iterator[Caller]:
        """Yield the oldest first."""
        return iter(self._callers)

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def is_full(self) -> bool:
        """Return whether somebody must leave before another one enters."""
        return len(self._callers) >= self._capacity

    def enter(self, caller: Caller) -> None:
        """Take in the newest."""
        self._callers[caller] = None
        self._by_source.setdefault(caller.source, {})[caller] = None

    def leave(self, caller: Caller) -> None:
        """Make room."""
        del self._callers[caller]
        of_source = self._by_source[caller.source]
        del of_source[caller]
        if not of_source:
            del self._by_source[caller.source]

    def first_to_give_way(self) -> Caller:
        """Return the oldest of the source that has most; of several such sources, the one that has been here for
        longest.

        Somebody is here.
        """
        largest = max(self._by_source.values(), key=len)
        return next(iter(largest))

    def late(self, now: float) -> list[Caller]:
        """Return those whose time is over."""
        return list(itertools.takewhile(lambda caller: caller.deadline <= now, self._callers))
