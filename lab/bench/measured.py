"""Hold what one of the two server processes measures, and count what it sends and how long it waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from precad.mpc.channel import Prefixed
from precad.mpc.sharing import Party
from precad.servers.links.lane import Lane

NOISE_STD = 2.0**17


@dataclass(slots=True)
class Measured:
    """Hold what one server saw of one case; one entry per repetition that counts."""

    check_s: list[float] = field(default_factory=list)
    computing_s: list[float] = field(default_factory=list)
    """Seconds of the check without its exchanges, in mode `proved` alone."""
    rows_s: list[float] = field(default_factory=list)
    """Seconds of the row values, before the check, in mode `proved` alone."""
    aggregate_s: list[float] = field(default_factory=list)
    """Noise, exchange of the noisy shares, their sum."""
    dealer_s: list[float] = field(default_factory=list)
    bytes_sent: int = 0
    """On the lane, by this server's socket, for one check: TLS's records included."""
    aggregate_bytes_sent: int = 0
    rounds: int = 0
    peak_rss: int = 0
    """Bytes, of the whole process from the lock to the noisy sum: submissions and the workload's one vector included.
    The process's peak so far where the kernel cannot reset it."""
    parts: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each part of the floor."""


class CountingChannel:
    """The servers' lane, with the counters that a report needs."""

    def __init__(self, lane: Lane, prefix: str) -> None:
        self._inner, self._lane = Prefixed(lane, prefix), lane
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self.rounds, self.waited_s, self._sent_before = 0, 0.0, self._lane.bytes_sent

    @property
    def party(self) -> Party:
        """Return 0 for A, 1 for B."""
        return self._inner.party

    @property
    def sent(self) -> int:
        """Return the bytes sent on the lane since `begin`."""
        return self._lane.bytes_sent - self._sent_before

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `precad.mpc.channel.Channel.exchange`."""
        self.rounds += 1
        start = time.perf_counter()
        try:
            return self._inner.exchange(label, payload, at_most)
        finally:
            self.waited_s += time.perf_counter() - start

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """See `precad.mpc.channel.Channel.exchange_pieces`. One round, however many pieces."""
        self.rounds += 1
        received = self._inner.exchange_pieces(label, pieces, at_most)
        while True:
            start = time.perf_counter()
            piece = next(received, None)
            self.waited_s += time.perf_counter() - start
            if piece is None:
                return
            yield piece
