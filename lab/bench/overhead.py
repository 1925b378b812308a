"""`precad bench overhead`: seconds per round of one training task under no privacy, local DP, and PRECAD.

100 virtual clients in four processes train the CNN of 26 010 parameters, with q = 0.1 and p = 0.05. The records are
MNIST's (`PRECAD_DATA`), 600 a client, or the bundled digits, enlarged, where MNIST is not there. All settings have the
same records, model, gradient engine and client processes, one thread each. The baselines repeat the choices of clients
that the deployment before them made.

    precad                     a whole deployment (`precad.deploy.localhost.deployment`): dealer, two aggregators,
                               clients over TLS
    precad-without-validation  the same run less the phase `validate`: phases follow each other
    local-dp, no-privacy       one server, the same gRPC and TLS (`precad.lab.bench.plain_federation`)
    local-dp-pipes             training and noise alone, over pipes (`precad.lab.bench.plain_training`)

The first rounds do not count.
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

from precad.clients.records.folder import find
from precad.deploy.localhost.deployment import LocalRun
from precad.lab.bench import machine
from precad.lab.bench.plain_federation import LOCAL_DP, NO_PRIVACY
from precad.lab.bench.plain_federation import measure as measure_plain
from precad.lab.bench.plain_training import LOCAL_DP_PIPES, PlainTraining
from precad.lab.bench.statistics import Spread
from precad.protos.task.task import Task

PROCESSES = 4
PHASES = ("select", "collect", "lock", "charge", "validate", "noise", "open", "commit", "update")
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
    dataset: str = "digits"

    @property
    def clients_per_process(self) -> int:
        """Return the number of clients per process, so that there are four processes."""
        return -(-self.clients // PROCESSES)

    @property
    def client(self) -> dict[str, Any]:
        """Return the `[client]` section."""
        return {"dataset": self.dataset, "partition_seed": 0, "device": "cpu"}

    def config(self, gate: str) -> dict[str, Any]:
        """Return what a user would write into a file for `precad run`."""
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
            "client": self.client,
            "localhost": {"clients_per_process": self.clients_per_process},
        }


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "dataset": .., "machine": {...}}`. Raises RunFailedError, BenchmarkError.

    Every gate is followed by a local-DP run with the same clients chosen: ratios compare neighbours in time.
    """
    facts = machine.facts()
    rows: list[dict[str, Any]] = []
    for gate in plan.gates:
        say(f"{PRECAD}, gate {gate}: {plan.warm_up + plan.rounds} rounds")
        task, chosen, rounds = _precad_rounds(plan, gate)
        unchecked = [{name: s for name, s in phases.items() if name != "validate"} for phases in rounds]
        here = [_row(PRECAD, gate, rounds[plan.warm_up :])]
        here.append(_row(WITHOUT_VALIDATION, gate, unchecked[plan.warm_up :]))
        for setting in (LOCAL_DP, NO_PRIVACY) if gate == plan.gates[-1] else (LOCAL_DP,):
            say(f"{setting}, one server over gRPC and TLS, the same clients chosen")
            plain = measure_plain(
                setting, task, plan.client, clients_per_process=plan.clients_per_process, chosen=chosen
            )
            here.append(_row(setting, gate, plain[plan.warm_up :]))
        if gate == plan.gates[-1]:
            say(f"{LOCAL_DP_PIPES}, the same clients chosen")
            with PlainTraining(task, plan.client, plan.clients_per_process) as pipes:
                here.append(_row(LOCAL_DP_PIPES, gate, pipes.rounds(chosen)[plan.warm_up :]))
        (local_dp,) = (row["seconds_per_round"] for row in here if row["setting"] == LOCAL_DP)
        for row in here:
            row["ratio"] = {LOCAL_DP: row["seconds_per_round"] / local_dp}
        rows += here
    return {"rows": rows, "dataset": plan.dataset, "machine": facts}


def default_dataset() -> str:
    """Return MNIST where PRECAD_DATA has it, otherwise the bundled digits."""
    return "mnist" if find("MNIST/raw/train-images-idx3-ubyte") is not None else "digits"


def _precad_rounds(plan: Plan, gate: str) -> tuple[Task, list[list[str]], list[dict[str, float]]]:
    """Run a whole deployment. Return the task, who was chosen in every round, and the seconds of the round's phases at
    server A."""
    with tempfile.TemporaryDirectory(prefix="precad-overhead-") as folder:
        local = LocalRun(plan.config(gate), Path(folder) / "run", Console(quiet=True), accuracy_every_round=False)
        asyncio.run(local.run())
        lines = [json.loads(line) for line in (local.folder.root / "metrics.jsonl").read_text().splitlines()]
        chosen = [line["participants"] for line in lines]
        return local.deployment.task, chosen, [line["seconds"] for line in lines]


def _row(setting: str, gate: str | None, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    names = sorted(rounds[0], key=PHASES.index)
    phases = {name: Spread.of([phases[name] for phases in rounds]).median for name in names}
    return {
        "setting": setting,
        "gate": gate,
        **Spread.of([sum(phases.values()) for phases in rounds]).fields("seconds_per_round"),
        "phases_s": phases,
    }
