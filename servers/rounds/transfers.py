"""Uploads, or downloads, of clients that are under way at once: who gets a place, and who makes room when others wait.

    room    so many transfers, and so many bytes, at once; one alone is let in however long it is
    one     transfer of a client: a newer download ends an older, whose connection may be lost; an upload has one try
    pace    while others wait, one older than grace_s is cut off that is slower than min_bytes_s, or will not be over by
            the round's deadline. The slowest is first, one for each client that is refused
    turns   who has had a place in this round gets another only when nobody waits who has had none

So while others wait, a transfer of n bytes keeps its place for max(grace_s, n / min_bytes_s) at most, whatever its
client does. Clients that mean harm have one turn each before everybody else has had one. Where nobody waits, nobody is
cut off, however slow.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from precad.servers.errors import Limit, OverloadedError
from precad.servers.rounds.uploads import Spool

RETRIES_PER_S = 200.0
"""How often clients that wait for a transfer should ask in all, so that asking costs little beside the transfers."""
SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.1, 10.0
CUT_OFF_RETRY_S = 1.0
"""When a client whose transfer was cut off should ask again."""
LATE_BY = 2.0
"""Factor on the time after which a client was told to come back. For that long, and at least for LEAST_WAIT_S, it
counts as waiting: it adds a random part."""
LEAST_WAIT_S = 4.0


@dataclass(slots=True, eq=False)
class Place:
    """One transfer that is under way."""

    n_bytes: int
    began_at: float
    limit: asyncio.Timeout
    n_moved: int = 0
    """Bytes of it so far, as whole messages."""
    is_cut_off: bool = False
    """Whether it had to make room. Its client may begin again."""

    def needs_s(self, now: float) -> float:
        """Return how much longer it takes at the speed that it had so far, seconds."""
        left = self.n_bytes - self.n_moved
        if left <= 0:
            return 0.0
        return left * (now - self.began_at) / self.n_moved if self.n_moved else math.inf

    def is_slower_than(self, bytes_s: float, now: float) -> bool:
        """Compare the average so far. One that has moved all and does not end is, sooner or later."""
        return self.n_moved < bytes_s * (now - self.began_at)

    def cut_off(self) -> None:
        """End it. Twice does nothing."""
        if not self.is_cut_off:
            self.is_cut_off = True
            self.limit.reschedule(asyncio.get_running_loop().time())


class Transfers:
    """Transfers of one kind, at one server."""

    def __init__(
        self,
        limit: Limit,
        max_places: int,
        max_bytes: float = math.inf,
        *,
        min_bytes_s: float,
        grace_s: float,
        n_told: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """limit: its name for max_places, in refusals. n_told: of so many clients hints to come back reckon. None: as
        many as wait, so that who is refused learns how many were drawn."""
        self._limit, self._max_places, self._max_bytes, self._now = limit, max_places, max_bytes, now
        self._min_bytes_s, self._grace_s, self._n_told = min_bytes_s, grace_s, n_told
        self._places: dict[str, Place] = {}
        self._round: Hashable = None
        self._had_a_turn: set[str] = set()
        self._waiting: OrderedDict[str, float] = OrderedDict()
        """Clients that were refused and have had no turn, and until when they count."""

    @asynccontextmanager
    async def place(
        self, client: str, n_bytes: int, *, round: Hashable, n_waiting: int, left_s: float
    ) -> AsyncIterator[Place]:
        """Give a place to a transfer of n_bytes that must be over in left_s, while n_waiting clients want one in this
        round.

        round: what turns are counted in, with the round's phase. Raises OverloadedError, also when it is cut off.
        """
        if round != self._round:
            self._round = round
            self._had_a_turn.clear()
            self._waiting.clear()
        if (older := self._places.pop(client, None)) is not None:
            older.cut_off()
        self._require_room(client, n_bytes, n_waiting, left_s)
        self._waiting.pop(client, None)
        self._had_a_turn.add(client)
        try:
            async with asyncio.timeout(None) as limit:
                place = self._places[client] = Place(n_bytes, self._now(), limit)
                try:
                    yield place
                finally:
                    if self._places.get(client) is place:
                        del self._places[client]
        except TimeoutError:
            raise OverloadedError(
                Limit.SLOW_TRANSFER, "it was too slow, and others wait", retry_after_s=CUT_OFF_RETRY_S
            ) from None

    def _require_room(self, client: str, n_bytes: int, n_waiting: int, left_s: float) -> None:
        now = self._now()
        if len(self._places) >= self._max_places:
            limit, detail = self._limit, f"at most {self._max_places} at once"
        elif self._places and sum(place.n_bytes for place in self._places.values()) + n_bytes > self._max_bytes:
            limit, detail = Limit.UPLOAD_BYTES, f"at most {self._max_bytes:.0f} bytes at once"
        elif client in self._had_a_turn and self._is_waited_for(now):
            raise OverloadedError(
                self._limit, "those who have had no turn in this round come first", retry_after_s=CUT_OFF_RETRY_S
            )
        else:
            return
        self._cut_off_slowest(left_s, now)
        n_told = n_waiting if self._n_told is None else self._n_told
        retry_after_s = min(max(n_told / RETRIES_PER_S, SHORTEST_RETRY_S), LONGEST_RETRY_S)
        if client not in self._had_a_turn:
            self._waiting[client] = now + max(LATE_BY * retry_after_s, LEAST_WAIT_S)
            self._waiting.move_to_end(client)
        raise OverloadedError(limit, detail, retry_after_s=retry_after_s)

    def _is_waited_for(self, now: float) -> bool:
        """Return whether a client that has had no turn is about to ask again."""
        while self._waiting:
            client, until = next(iter(self._waiting.items()))
            if until > now:
                return True
            del self._waiting[client]
        return False

    def _cut_off_slowest(self, left_s: float, now: float) -> None:
        """Cut off the slowest that has had its grace and is slower than it may be, or will not be over in left_s."""
        slow = [
            place
            for place in self._places.values()
            if now - place.began_at >= self._grace_s
            and (place.is_slower_than(self._min_bytes_s, now) or place.needs_s(now) > left_s)
        ]
        if slow:
            max(slow, key=lambda place: place.needs_s(now)).cut_off()


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bound what one server takes on of its clients' bytes, over all rounds."""

    spool: Spool
    """Where uploads lie."""
    uploads: Transfers
    downloads: Transfers
