"""Measure a case at one of the two server processes: its times, what it sends and how long it waits."""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from precad.lab.bench.machine import peak_rss, reset_peak_rss
from precad.lab.bench.workload import Case, open_spool
from precad.mpc.channel import Prefixed
from precad.servers.links.lane import Lane
from precad.servers.rounds.uploads import Spool

T = TypeVar("T")
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
        self._inner, self._lane, self.party = Prefixed(lane, prefix), lane, lane.party
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self.rounds, self.waited_s, self._sent_before = 0, 0.0, self._lane.bytes_sent

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


class CaseRun(ABC):
    """One case on its way."""

    def __init__(self, case: Case, channel: CountingChannel) -> None:
        self.case, self.measured, self._channel = case, Measured(), channel

    @abstractmethod
    def repeat(self, repetition: int, *, is_timed: bool) -> None:
        """Run one repetition, at both servers; the warm-up's leave no time."""


class BatchRun(CaseRun):
    """A check, every time on a fresh batch. All verdicts are looked at; in the warm-up, the opened sum as well."""

    def repeat(self, repetition: int, *, is_timed: bool) -> None:
        """See base. Raises WrongVerdictError."""
        with (
            tempfile.TemporaryDirectory(prefix="precad-bench-") as folder,
            open_spool(self.case, Path(folder)) as spool,
        ):
            self._repeat(repetition, spool, is_timed=is_timed)

    @abstractmethod
    def _repeat(self, repetition: int, spool: Spool, *, is_timed: bool) -> None: ...

    def _check(self, check: Callable[[], T]) -> tuple[T, float]:
        """Run a check that both servers begin at once. Return its outcome and its seconds."""
        channel, measured = self._channel, self.measured
        channel.exchange("barrier", b"")
        channel.begin()
        reset_peak_rss()
        start = time.perf_counter()
        checked = check()
        seconds = time.perf_counter() - start
        measured.bytes_sent, measured.rounds = channel.sent, channel.rounds
        measured.peak_rss = max(measured.peak_rss, peak_rss())
        return checked, seconds

    def _aggregate(self, open_noisy_sum: Callable[[], object]) -> None:
        """Time Algorithm 1, line 5: this server's noise, then both noisy shares are exchanged and added."""
        channel, measured = self._channel, self.measured
        channel.exchange("barrier", b"")
        channel.begin()
        start = time.perf_counter()
        open_noisy_sum()
        measured.aggregate_s.append(time.perf_counter() - start)
        measured.aggregate_bytes_sent = channel.sent
        measured.peak_rss = max(measured.peak_rss, peak_rss())
