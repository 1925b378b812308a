"""The registered clients and their open streams. A client is connected for as long as its `Join` call is open."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime

from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.servers.errors import AlreadyConnectedError, NotEnrolledError

MAX_EVENTS = 4
"""That wait for one client at most."""
MAX_ABSENT = 5
"""Clients that a list of absent ones names; the others are counted."""


class Sessions:
    """Registered clients of one task at one server."""

    def __init__(self, enrolled: Collection[str], now: Callable[[], float] = time.time) -> None:
        """now: seconds since the epoch."""
        self._enrolled, self._now = frozenset(enrolled), now
        self._absent_since = dict.fromkeys(enrolled, now())
        self._queues: dict[str, asyncio.Queue[aggregator_pb2.ClientEvent]] = {}
        self.changed = asyncio.Condition()

    @property
    def connected(self) -> frozenset[str]:
        """Return the clients with an open stream."""
        return frozenset(self._queues)

    def absent(self) -> tuple[tuple[str, float], ...]:
        """Return those who are away longest, MAX_ABSENT at most, and since when: the start of this server at first."""
        return tuple(heapq.nsmallest(MAX_ABSENT, self._absent_since.items(), key=lambda one: (one[1], one[0])))

    def absent_since(self, client: str) -> float | None:
        """Return since when a client is away; None while it is connected."""
        return self._absent_since.get(client)

    def describe_absent(self) -> str:
        """Name the first of them and count the others, in one short line."""
        named = [f"{client!r} since {_clock(since)}" for client, since in self.absent()]
        n_more = len(self._absent_since) - len(named)
        return ", ".join(named) + (f" and {n_more} more" if n_more else "")

    @property
    def n_queued(self) -> int:
        """Count the events that wait for their clients' streams."""
        return sum(queue.qsize() for queue in self._queues.values())

    def enter(self, client: str) -> asyncio.Queue[aggregator_pb2.ClientEvent]:
        """Return the event queue of a client whose stream opens. Raises NotEnrolledError, AlreadyConnectedError."""
        if client not in self._enrolled:
            raise NotEnrolledError(f"client {client!r} is not enrolled in this task")
        if client in self._queues:
            raise AlreadyConnectedError(f"client {client!r} has another open session with this server")
        queue = self._queues[client] = asyncio.Queue(MAX_EVENTS)
        del self._absent_since[client]
        return queue

    def leave(self, client: str) -> None:
        """Note that the client's stream has ended."""
        del self._queues[client]
        self._absent_since[client] = self._now()

    async def notify(self) -> None:
        """Wake whoever waits for sessions to come or go."""
        async with self.changed:
            self.changed.notify_all()

    def send(self, client: str, event: aggregator_pb2.ClientEvent) -> None:
        """Queue an event for a connected client. For one that does not read, in place of the oldest: an invitation is
        worth nothing once there is a newer one."""
        queue = self._queues[client]
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(event)

    def say_goodbye(self, goodbye: common_pb2.Goodbye) -> None:
        """Queue the last event for everybody."""
        for client in self._queues:
            self.send(client, aggregator_pb2.ClientEvent(goodbye=goodbye))

    async def wait_for(self, n_clients: int) -> None:
        """Return when at least n_clients are connected."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self._queues) >= n_clients)

    async def wait_until_gone(self) -> None:
        """Return when every stream has ended."""
        async with self.changed:
            await self.changed.wait_for(lambda: not self._queues)


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


async def events_of(
    queue: asyncio.Queue[aggregator_pb2.ClientEvent],
) -> AsyncIterator[aggregator_pb2.ClientEvent]:
    """Yield events until, and with, the goodbye. One that was taken is not kept while the next is awaited (S4)."""
    is_over = False
    while not is_over:
        event = await queue.get()
        is_over = event.WhichOneof("event") == "goodbye"
        yield event
        del event
