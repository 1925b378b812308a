"""`precad bench audit`: what an audit costs the servers in a round, beside the same task without one.

Ten clients train the CNN of 26 010 parameters, all of them in every round, so each round has as many uploads as any
other. In the audited task two of them hold canaries, 256 each, and both servers keep their noise at the canaries.
Both run at once, two rounds of one by turns with two of the other (`precad.lab.bench.turns`).

    servers_s      seconds of all phases at server A but `collect`, which waits for clients
    servers_cpu_s  processor time of all servers, a round

A row has medians over rounds, or turns. A ratio is of the sums over all turns, with its 95 % interval from their pairs.
512 coordinates are 2 % of the model's, so an audit costs up to as much wherever work grows with d.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from precad.lab.bench import machine, turns
from precad.lab.bench.overhead import PHASES
from precad.lab.bench.statistics import Spread
from precad.lab.bench.turns import Turn

PLAIN, AUDITED = "plain", "audited"
TARGET: Final = 1.02
"""Most that a round's part of the servers may take, beside that of the plain task."""
_OF_CLIENTS: Final = "collect"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The task's size."""

    clients: int = 10
    audit_clients: int = 2
    rounds: int = 60
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
    pairs: turns.Pairs = []
    for repetition in range(plan.repetitions):
        say(f"{repetition + 1} of {plan.repetitions}: {plan.warm_up + plan.rounds} rounds of each task, by turns")
        swaps = repetition % 2 == 1
        order = (AUDITED, PLAIN) if swaps else (PLAIN, AUDITED)
        found = turns.run(*(plan.config(setting) for setting in order), warm_up=plan.warm_up)
        pairs += [(second, first) for first, second in found] if swaps else found
    rows = [_row(setting, [pair[i] for pair in pairs]) for i, setting in enumerate((PLAIN, AUDITED))]
    return {"rows": rows, "targets": _compared(pairs), "machine": facts}


def _row(setting: str, found: Sequence[Turn]) -> dict[str, Any]:
    rounds = [one for turn in found for one in turn.phases]
    names = sorted(set(rounds[0]) - {_OF_CLIENTS}, key=PHASES.index)
    return {
        "setting": setting,
        **Spread.of([_servers_s(one) for one in rounds]).fields("servers_s"),
        "servers_cpu_s": {"together": median(turn.servers_cpu_s for turn in found)},
        "phases_s": {name: median(one[name] for one in rounds) for name in names},
    }


def _servers_s(phases: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in phases.items() if name != _OF_CLIENTS)


def _compared(pairs: turns.Pairs) -> list[dict[str, Any]]:
    """Return the target with what was measured, by seconds and by processor time."""
    of_turn: dict[str, Callable[[Turn], float]] = {
        "servers_s": lambda turn: sum(map(_servers_s, turn.phases)) / len(turn.phases),
        "servers_cpu_s": lambda turn: turn.servers_cpu_s,
    }
    found = {
        name: turns.ratio([(value(plain), value(audited)) for plain, audited in pairs])
        for name, value in of_turn.items()
    }
    return [
        {"what": name, "target": TARGET, "measured": ours, "interval": [low, high], "met": ours <= TARGET}
        for name, (ours, low, high) in found.items()
    ]
