"""Run a whole deployment for a benchmark: seconds of each round, processor time, and a delay between its servers.

A delay is that of a relay between the aggregators (`precad.lab.bench.delaying_relay`), in each direction. Server A has
another address of B then; clients, the dealer and the runner reach both servers directly.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w
from rich.console import Console

from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.processes import Process
from precad.lab.bench import processor_time
from precad.lab.bench.delaying_relay import DelayingRelay
from precad.lab.bench.processor_time import ProcessorTime
from precad.lab.bench.server_pair import free_ports
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role

RELAY_HOST: Final = "127.0.0.2"
SERVERS: Final = (Role.AGGREGATOR_A.value, Role.AGGREGATOR_B.value, Role.DEALER.value)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Hold what a run measured, per round in the order of the rounds."""

    task: Task
    chosen: list[list[str]]
    phases: list[dict[str, float]]
    """Seconds of each phase at server A."""
    processor_time: ProcessorTime | None
    """The mean of the rounds that count; servers are A, B and the dealer where there is one. None where too few rounds
    were seen apart, as on a machine with too much else to do."""


def run(config: Mapping[str, Any], *, warm_up: int, delay_s: float = 0.0) -> RunResult:
    """Run a deployment to its end. Raises RunFailedError."""
    with tempfile.TemporaryDirectory(prefix="precad-overhead-") as folder:
        local = MeasuredRun(config, Path(folder) / "run", delay_s)
        metrics = local.folder.metrics
        watch = processor_time.Watch(lambda: processor_time.n_lines(metrics), local.pids, SERVERS)
        with local.relay, watch:
            asyncio.run(local.run())
        lines = _lines(metrics)
        return RunResult(
            local.deployment.task,
            [line["participants"] for line in lines],
            [line["seconds"] for line in lines],
            watch.per_round(warm_up=warm_up, rounds=local.deployment.task.rounds),
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
        """Return the processes that have been started, by name."""
        return {child.name: child.process.pid for child in self._children.all}

    def processes(self) -> list[Process]:
        """Return all processes of the run that have been started and not ended."""
        return [child.process for child in self._children.all if child.exit_code is None]

    def servers_cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each server so far, ended threads included; 0 of one that has ended."""
        return {name: processor_time.of_process(pid) for name, pid in self.pids().items() if name in SERVERS}

    @property
    def n_done(self) -> int:
        """Return how many rounds are over, as the runner has heard."""
        return len(self._progress.metrics)

    @property
    def seconds(self) -> list[dict[str, float]]:
        """Return the seconds of each phase at server A, by round."""
        return [line["seconds"] for line in self._progress.metrics]


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """Return the rounds that are written whole."""
    try:
        text = metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
