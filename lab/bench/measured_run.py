"""Run a whole deployment for a benchmark: seconds of each round, processor time, and a delay between its servers.

A delay is that of a relay between the aggregators (`precad.lab.bench.delaying_relay`), in each direction. Server A has
another address of B then; clients, the dealer and the runner reach both servers directly.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tomli_w
from rich.console import Console

from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.processes import Process
from precad.lab.bench.delaying_relay import DelayingRelay
from precad.lab.bench.server_pair import free_ports
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role

RELAY_HOST: Final = "127.0.0.2"
POLL_S: Final = 0.02
_OF_PROCESS: Final = 2
"""CPUCLOCK_SCHED of Linux: what the scheduler counts, in nanoseconds."""
SERVERS: Final = (Role.AGGREGATOR_A.value, Role.AGGREGATOR_B.value, Role.DEALER.value)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Hold what a run measured, per round in the order of the rounds."""

    task: Task
    chosen: list[list[str]]
    phases: list[dict[str, float]]
    """Seconds of each phase at server A."""
    servers_cpu_s: dict[str, float] | None
    """Processor seconds of A, B and the dealer where there is one, a round: the mean over the rounds that count. None
    where the runner heard of too few of them apart, as on a machine with too much else to do."""


def run(config: Mapping[str, Any], *, warm_up: int, delay_s: float = 0.0) -> RunResult:
    """Run a deployment to its end. Raises RunFailedError."""
    with tempfile.TemporaryDirectory(prefix="precad-overhead-") as folder:
        local = MeasuredRun(config, Path(folder) / "run", delay_s)
        watch = _ProcessorTime(local, warm_up)
        with local.relay, watch:
            asyncio.run(local.run())
        lines = _lines(local.folder.metrics)
        return RunResult(
            local.deployment.task,
            [line["participants"] for line in lines],
            [line["seconds"] for line in lines],
            watch.per_round(),
        )


class MeasuredRun(LocalRun):
    """A deployment whose server A reaches B by way of a relay, where there is a delay."""

    def __init__(self, config: Mapping[str, Any], output: Path, delay_s: float = 0.0) -> None:
        lane, peer, *others = free_ports(5)
        raw = dict(config)
        if delay_s:
            local = {"aggregator_a": others[0], "aggregator_b": peer, "dealer": others[1]}
            with_dealer = raw["task"].get("mode") != "proved"
            raw["network"] = {
                name: f"127.0.0.1:{port}" for name, port in local.items() if name != "dealer" or with_dealer
            }
            raw["aggregator"] = {"b": {"lane_listen": f"127.0.0.1:{lane}"}}
        super().__init__(raw, output, Console(quiet=True), measured_every=0)
        ways = [((RELAY_HOST, port), ("127.0.0.1", port)) for port in (peer, lane)]
        self.relay: AbstractContextManager[Any] = DelayingRelay(ways, delay_s) if delay_s else nullcontext()
        self._of_a = self.folder.root / "config-a.toml"
        if delay_s:
            resolved = tomllib.loads(self.folder.config.read_text(encoding="utf-8"))
            resolved["network"]["aggregator_b"] = f"{RELAY_HOST}:{peer}"
            self._of_a.write_text(tomli_w.dumps(resolved), encoding="utf-8")

    def config_of(self, server: Role) -> Path:
        """See `LocalRun.config_of`."""
        is_delayed = server is Role.AGGREGATOR_A and self._of_a.exists()
        return self._of_a if is_delayed else self.folder.config

    def pids(self) -> dict[str, int]:
        """Return the process of each server that has been started."""
        started = {child.name: child.process.pid for child in self._children.all}
        return {name: started[name] for name in SERVERS if name in started}

    def processes(self) -> list[Process]:
        """Return all processes of the run that have been started and not ended."""
        return [child.process for child in self._children.all if child.exit_code is None]

    def servers_cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each server so far, ended threads included; 0 of one that has ended."""
        return {name: _processor_s(pid) for name, pid in self.pids().items()}

    @property
    def n_done(self) -> int:
        """Return how many rounds are over, as the runner has heard."""
        return len(self._progress.metrics)

    @property
    def seconds(self) -> list[dict[str, float]]:
        """Return the seconds of each phase at server A, by round."""
        return [line["seconds"] for line in self._progress.metrics]


@dataclass(slots=True)
class _ProcessorTime:
    """Watches the servers' processor time, from the end of the warm-up to the last round but one.

    What is spent after the last round, on its end, is of no round.
    """

    local: MeasuredRun
    warm_up: int
    seen: dict[int, dict[str, float]] = field(default_factory=dict)
    """Rounds that were over, and each server's processor seconds until then."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None  # entered before
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            n_rounds = _n_lines(self.local.folder.metrics)
            if n_rounds and n_rounds not in self.seen:
                self.seen[n_rounds] = self.local.servers_cpu_s()

    def per_round(self) -> dict[str, float] | None:
        """Return the mean over the rounds that count, in seconds; None where fewer than two were seen to end."""
        rounds = sorted(n for n in self.seen if self.warm_up <= n < self.local.deployment.task.rounds)
        if len(rounds) < 2:
            return None
        first, last = rounds[0], rounds[-1]
        return {name: (s - self.seen[first][name]) / (last - first) for name, s in self.seen[last].items()}


def _processor_s(pid: int) -> float:
    """Return the processor seconds of a process, its threads included; 0 where it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | _OF_PROCESS)
    except OSError:
        return 0.0


def _n_lines(metrics: Path) -> int:
    """Return how many rounds are written whole. Their lines are not read: the run pays for whoever watches it."""
    try:
        return metrics.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """Return the rounds that are written whole."""
    try:
        text = metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
