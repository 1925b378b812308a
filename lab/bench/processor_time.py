"""Processor time of a deployment's processes, a round, while it runs. Linux.

    servers    each server by itself
    clients    all client processes together
    runner     the process that started them, where it takes part
    threads    the servers' time by kind of thread: `event loop` (the first one, which serves calls), `gRPC`'s own, and
               `others`, which compute, write and seal

Threads that have ended count in their process, and not by kind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

POLL_S: Final = 0.02
_OF_PROCESS: Final = 2
"""CPUCLOCK_SCHED of Linux: what the scheduler counts, in nanoseconds."""
_OF_GRPC: Final = ("grpc", "event_engine", "timer_manager", "default-executo", "resolver-execut")
"""How gRPC begins its threads' names, of which Linux keeps 15 characters."""
EVENT_LOOP, GRPC, OTHERS = "event loop", "gRPC", "others"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorTime:
    """Hold processor seconds: of a round, or until now."""

    servers: Mapping[str, float]
    clients: float
    runner: float
    threads: Mapping[str, float]

    def fields(self) -> dict[str, Any]:
        """Return the part of a report's row."""
        return {
            "servers_cpu_s": dict(self.servers),
            "clients_cpu_s": self.clients,
            "runner_cpu_s": self.runner,
            "servers_threads_s": dict(self.threads),
        }

    def per_round(self, earlier: Self, rounds: int) -> ProcessorTime:
        """Return the mean of the rounds since an earlier reading."""
        return ProcessorTime(
            servers={name: (s - earlier.servers[name]) / rounds for name, s in self.servers.items()},
            clients=(self.clients - earlier.clients) / rounds,
            runner=(self.runner - earlier.runner) / rounds,
            threads={kind: (s - earlier.threads[kind]) / rounds for kind, s in self.threads.items()},
        )


def read(pids: Mapping[str, int], servers: Collection[str]) -> ProcessorTime:
    """Return the processor seconds of processes until now; those not among `servers` are clients'."""
    of_servers = {name: of_process(pids[name]) for name in servers if name in pids}
    threads = dict.fromkeys((EVENT_LOOP, GRPC, OTHERS), 0.0)
    for name in of_servers:
        for kind, seconds in _of_threads(pids[name]):
            threads[kind] += seconds
    of_clients = sum(of_process(pid) for name, pid in pids.items() if name not in servers)
    return ProcessorTime(servers=of_servers, clients=of_clients, runner=time.process_time(), threads=threads)


def of_process(pid: int) -> float:
    """Return the processor seconds of a process, its threads included, ended ones too; 0 where it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | _OF_PROCESS)
    except OSError:
        return 0.0


def _of_threads(pid: int) -> list[tuple[str, float]]:
    """Return kind and processor seconds of every thread that runs."""
    found = []
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            name, times = (folder / "comm").read_text(), (folder / "schedstat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        kind = EVENT_LOOP if folder.name == str(pid) else GRPC if name.startswith(_OF_GRPC) else OTHERS
        found.append((kind, int(times.split()[0]) / 1e9))
    return found


@dataclass(slots=True)
class Watch:
    """Read processor time at the end of each round, from a thread of its own, in a context.

    What is spent after the last round, on its end, is of no round.
    """

    n_done: Callable[[], int]
    """Rounds that are over."""
    pids: Callable[[], Mapping[str, int]]
    """Processes that have been started, by name."""
    servers: Collection[str]
    """Names of those that are servers."""
    seen: dict[int, ProcessorTime] = field(default_factory=dict)
    """Rounds that were over, and what had been spent until then."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None  # entered before
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            n_rounds = self.n_done()
            if n_rounds and n_rounds not in self.seen:
                self.seen[n_rounds] = read(self.pids(), self.servers)

    def per_round(self, *, warm_up: int, rounds: int) -> ProcessorTime | None:
        """Return the mean over the rounds that count, of so many in all; None where fewer than two were seen to end."""
        counted = sorted(n for n in self.seen if warm_up <= n < rounds)
        if len(counted) < 2:
            return None
        first, last = counted[0], counted[-1]
        return self.seen[last].per_round(self.seen[first], last - first)


def n_lines(path: Path) -> int:
    """Return how many lines are written whole. They are not read: the run pays for whoever watches it."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
