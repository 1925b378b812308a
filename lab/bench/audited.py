"""`precad bench audit`: what an audit costs the servers in a round, beside the same task without one.

Ten clients train the CNN of 26 010 parameters, all of them in every round, so each round has as many uploads as any
other. In the audited task two of them hold canaries, 256 each, and both servers keep their noise at the canaries.
Tasks take turns, so that ratios compare neighbours in time.

    servers_s      seconds of all phases at server A but `collect`, which waits for clients: medians over rounds
    servers_cpu_s  processor time of both aggregators, a round
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from precad.lab.bench import machine, measured_run
from precad.lab.bench.overhead import PHASES
from precad.lab.bench.statistics import Spread

PLAIN, AUDITED = "plain", "audited"
TARGET: Final = 1.02
"""Most that a round's part of the servers may take, beside that of the plain task."""
_OF_CLIENTS: Final = "collect"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The task's size."""

    clients: int = 10
    audit_clients: int = 2
    rounds: int = 30
    warm_up: int = 3
    repetitions: int = 3

    def config(self, setting: str) -> dict[str, Any]:
        """Return what a user would write into a file for `precad run`."""
        ids = [f"client-{i:03d}" for i in range(self.clients)]
        auditing = ids[-self.audit_clients :] if setting == AUDITED else []
        noise = {"keep_canary_noise": setting == AUDITED}
        return {
            "task": {
                "name": "overhead",
                "clients": ids,
                "audit_clients": auditing,
                "rounds": self.warm_up + self.rounds,
                "client_rate": 1.0,
                "record_rate": 0.05,
                "record_clip": 1.0,
                "client_clip": 16.0,
                "noise_multiplier": 1.0,
                "learning_rate": 0.1,
                "model": "cnn",
                "gate": "native",
            },
            "aggregator": {"a": noise, "b": noise},
            "client": {"dataset": "digits", "device": "cpu"},
            "localhost": {"clients_per_process": self.clients},
        }


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "targets": [...], "machine": {...}}`. Raises RunFailedError."""
    facts = machine.facts()
    phases: dict[str, list[dict[str, float]]] = {PLAIN: [], AUDITED: []}
    processor_s: dict[str, list[float]] = {PLAIN: [], AUDITED: []}
    for repetition in range(plan.repetitions):
        for setting in (PLAIN, AUDITED) if repetition % 2 == 0 else (AUDITED, PLAIN):
            say(f"{setting}: {plan.warm_up + plan.rounds} rounds")
            measured = measured_run.run(plan.config(setting), warm_up=plan.warm_up)
            phases[setting] += measured.phases[plan.warm_up :]
            processor_s[setting] += [] if measured.servers_cpu_s is None else [measured.servers_cpu_s]
    rows = [_row(setting, phases[setting], processor_s[setting]) for setting in (PLAIN, AUDITED)]
    return {"rows": rows, "targets": _compared(*rows), "machine": facts}


def _row(setting: str, rounds: list[dict[str, float]], processor_s: list[float]) -> dict[str, Any]:
    ours = [{name: s for name, s in one.items() if name != _OF_CLIENTS} for one in rounds]
    names = sorted(ours[0], key=PHASES.index)
    return {
        "setting": setting,
        **Spread.of([sum(one.values()) for one in ours]).fields("servers_s"),
        "servers_cpu_s": median(processor_s) if processor_s else None,
        "phases_s": {name: median(one[name] for one in ours) for name in names},
    }


def _compared(plain: dict[str, Any], audited: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the target with what was measured, by seconds and by processor time."""
    found = {name: (plain[name], audited[name]) for name in ("servers_s", "servers_cpu_s")}
    return [
        {"what": name, "target": TARGET, "measured": ours / before, "met": ours / before <= TARGET}
        for name, (before, ours) in found.items()
        if before and ours
    ]
