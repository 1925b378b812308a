"""Events of both servers that wait for their client: in order, and at most so many of each server.

A server that deviates may send events without end. Nothing that it sends takes memory beyond `MOST_WAITING` events of
`MOST_EVENT_BYTES` bytes, and it takes no place of the other server's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from precad.clients.errors import ServerUnreachableError
from precad.protos.tls.identity import AGGREGATORS

T = TypeVar("T")

MOST_WAITING: Final = 64
"""Rounds that a client may lag behind. An honest server sends an invitation, and in mode `proved` a challenge, a
round."""
MOST_EVENT_BYTES: Final = 64 * 1024
_arrivals: Final = itertools.count(1)


class Waiting(Generic[T]):
    """Events that wait, with the server that each is from."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._events: asyncio.Queue[tuple[int, int, T]] = asyncio.Queue()
        self._most, self._count = most, Counter[int]()
        self.arrived = 0
        """When the event that `get` returned last had come, in the order of all that come to this process."""

    def put(self, server: int, event: T) -> None:
        """Add an event. Raises ServerUnreachableError for one more of a server than may wait: the client hangs up, and
        joins again after a pause."""
        if self._count[server] >= self._most:
            raise ServerUnreachableError(
                f"{AGGREGATORS[server]}: expected at most {self._most} events that wait for this client, found more"
            )
        self._put(next(_arrivals), server, event)

    def _put(self, arrived: int, server: int, event: T) -> None:
        self._count[server] += 1
        self._events.put_nowait((arrived, server, event))

    async def get(self) -> tuple[int, T]:
        """Return the oldest event and its server, once there is one."""
        self.arrived, server, event = await self._events.get()
        self._count[server] -= 1
        return server, event

    def keep(self, is_kept: Callable[[T], bool]) -> None:
        """Drop all events but those."""
        for _ in range(self._events.qsize()):
            arrived, server, event = self._events.get_nowait()
            self._count[server] -= 1
            if is_kept(event):
                self._put(arrived, server, event)

    def __len__(self) -> int:
        return self._events.qsize()
