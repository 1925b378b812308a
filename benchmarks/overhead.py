"""`precad bench overhead`: seconds per round of one training task under no privacy, local DP, and PRECAD.

100 virtual clients in four processes, q = 0.1, p = 0.05, the CNN of 26 010 parameters on the bundled digits, enlarged.
PRECAD is a whole deployment (`deploy.localhost`): dealer, two aggregators and the clients as processes over TLS. Its
phases follow each other, so `precad-without-validation` is the same run less the phase `validate`. The first rounds do
not count.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks.plain_training import LOCAL_DP, NO_PRIVACY, PlainTraining
from benchmarks.statistics import Spread
from deploy.localhost import LocalRun
from protos.task import Task

PROCESSES = 4
PHASES = ("select", "collect", "lock", "validate", "noise", "charge", "open", "commit", "update")
"""In the order of a round; `update` is all that the baselines do after `collect`."""
PRECAD, WITHOUT_VALIDATION = "precad", "precad-without-validation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The task's size."""

    clients: int = 100
    rounds: int = 30
    warm_up: int = 3
    record_rate: float = 0.05
    gates: tuple[str, ...] = ("crypten", "native")

    @property
    def clients_per_process(self) -> int:
        """So that there are four processes."""
        return -(-self.clients // PROCESSES)

    def config(self, gate: str) -> dict[str, Any]:
        """What a user would write into a file for `precad run`."""
        return {
            "task": {
                "name": "overhead",
                "clients": [f"client-{i:03d}" for i in range(self.clients)],
                "rounds": self.warm_up + self.rounds,
                "client_rate": 0.1,
                "record_rate": self.record_rate,
                "record_clip": 1.0,
                "client_clip": 16.0,
                "noise_multiplier": 1.0,
                "learning_rate": 0.1,
                "model": "cnn",
                "gate": gate,
            },
            "client": {"dataset": "digits", "partition_seed": 0, "device": "cpu"},
            "localhost": {"clients_per_process": self.clients_per_process},
        }


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """The report: `{"rows": [...], "machine": {...}}`. Raises RunFailedError, BenchmarkError."""
    facts = machine.facts()
    rows: list[dict[str, Any]] = []
    task: Task | None = None
    for gate in plan.gates:
        say(f"{PRECAD}, gate {gate}: {plan.warm_up + plan.rounds} rounds")
        task, rounds = _precad_rounds(plan, gate)
        rounds = rounds[plan.warm_up :]
        rows.append(_row(PRECAD, gate, rounds))
        unchecked = [{name: s for name, s in phases.items() if name != "validate"} for phases in rounds]
        rows.append(_row(WITHOUT_VALIDATION, gate, unchecked))
    assert task is not None  # a plan has a gate
    with PlainTraining(task, plan.clients_per_process) as plain:
        for setting in (LOCAL_DP, NO_PRIVACY):
            say(f"{setting}: {plan.warm_up + plan.rounds} rounds")
            rows.append(_row(setting, None, plain.rounds(setting, plan.warm_up + plan.rounds)[plan.warm_up :]))
    (local_dp,) = (row["seconds_per_round"] for row in rows if row["setting"] == LOCAL_DP)
    for row in rows:
        row["ratio"] = {LOCAL_DP: row["seconds_per_round"] / local_dp}
    return {"rows": rows, "machine": facts}


def _precad_rounds(plan: Plan, gate: str) -> tuple[Task, list[dict[str, float]]]:
    """A whole deployment; seconds of every phase at server A, round by round."""
    with tempfile.TemporaryDirectory(prefix="precad-overhead-") as folder:
        local = LocalRun(plan.config(gate), Path(folder) / "run", Console(quiet=True), accuracy_every_round=False)
        asyncio.run(local.run())
        lines = (local.folder.root / "metrics.jsonl").read_text().splitlines()
        return local.deployment.task, [json.loads(line)["seconds"] for line in lines]


def _row(setting: str, gate: str | None, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    names = sorted(rounds[0], key=PHASES.index)
    phases = {name: Spread.of([phases[name] for phases in rounds]).median for name in names}
    return {
        "setting": setting,
        "gate": gate,
        **Spread.of([sum(phases.values()) for phases in rounds]).fields("seconds_per_round"),
        "phases_s": phases,
    }
