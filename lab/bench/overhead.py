"""`precad bench overhead`: seconds per round of one training task under no privacy, local DP, and PRECAD.

100 virtual clients in four processes train the CNN of 26 010 parameters, with q = 0.1 and p = 0.05. The records are
MNIST's (`PRECAD_DATA`), 600 a client, or the bundled digits, enlarged, where MNIST is not there. A model of another
size has dense layers (`precad.lab.bench.dense`). All settings have the same records, model, gradient engine and client
processes, one thread each. The baselines repeat the choices of clients that the deployment before them made.

    precad                     a whole deployment (`precad.deploy.localhost.deployment`): dealer, two aggregators,
                               clients over TLS
    precad-without-validation  the same run less the phase `validate`: phases follow each other
    local-dp, no-privacy       one server, the same gRPC and TLS (`precad.lab.bench.plain_federation`)
    local-dp-pipes             training and noise alone, over pipes (`precad.lab.bench.plain_training`)
    bare-servers               clients and messages of mode `proved`, at servers that compute and write nothing
                               (`precad.lab.bench.bare_servers`)

The first rounds do not count. In mode `proved` the phase `prove` belongs to the validation. Processor time is that of a
round (`precad.lab.bench.processor_time`): of each server, of all clients, and of the servers by kind of thread. Servers
are both aggregators, and the dealer where there is one. Modes are compared by a drawn client's part of the servers'
time, as rounds have more clients in one run than in another. A delay is one between the aggregators, in each direction
(`precad.lab.bench.measured_run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from precad.clients.records.folder import find
from precad.lab.bench import bare_servers, dense, machine, measured_run
from precad.lab.bench.bare_servers import BARE_SERVERS
from precad.lab.bench.measured_run import RunResult
from precad.lab.bench.plain_federation import LOCAL_DP, NO_PRIVACY
from precad.lab.bench.plain_federation import measure as measure_plain
from precad.lab.bench.plain_training import LOCAL_DP_PIPES, PlainTraining
from precad.lab.bench.processor_time import ProcessorTime
from precad.lab.bench.proved import PROVED
from precad.lab.bench.statistics import Spread
from precad.protos.messages.phases import PHASES as OF_A_RECORD

PROCESSES = 4
PHASES = (*OF_A_RECORD, "update")
"""In the order of a round; `update` is all that the baselines do after `collect`."""
OF_VALIDATION = {"prove", "validate"}
PRECAD, WITHOUT_VALIDATION = "precad", "precad-without-validation"
NATIVE = "native"
ROUND_TARGET, PROCESSOR_TARGET = 1.35, 0.6
"""Mode `proved`: at most so many times the round of local DP, and the servers' processor time with gate `native`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The task's size."""

    clients: int = 100
    rounds: int = 30
    warm_up: int = 3
    record_rate: float = 0.05
    gates: tuple[str, ...] = ("crypten", NATIVE, PROVED)
    """Gates of a task with a dealer, or mode `proved`."""
    delays_ms: tuple[float, ...] = ()
    """Delays between the aggregators, beside none; with `native` and `proved`."""
    dataset: str = "digits"
    parameters: int = 0
    """Least size of a dense model; 0 for the CNN."""

    @property
    def model(self) -> dict[str, Any]:
        """Return the model's part of the `[task]` section."""
        return dense.section(self.parameters, self.dataset) if self.parameters else {"model": "cnn"}

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
                **self.model,
                **({"mode": PROVED} if gate == PROVED else {"gate": gate}),
            },
            "client": self.client,
            "localhost": {"clients_per_process": self.clients_per_process},
        }


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "targets": [...], "dataset": .., "d": .., "machine": {...}}`.

    Raises RunFailedError, BenchmarkError.

    Every gate is followed by a local-DP run with the same clients chosen: ratios compare neighbours in time.
    """
    facts = machine.facts()
    rows: list[dict[str, Any]] = []
    dim = 0
    for gate in plan.gates:
        say(f"{PRECAD}, {gate}: {plan.warm_up + plan.rounds} rounds")
        measured = measured_run.run(plan.config(gate), warm_up=plan.warm_up)
        here = [*_our_rows(plan, gate, measured), *_baselines(plan, gate, measured, say)]
        here += _delayed(plan, gate, say)
        (local_dp,) = (row["seconds_per_round"] for row in here if row["setting"] == LOCAL_DP)
        for row in here:
            row.setdefault("clients", _drawn(plan, measured))
            row["ratio"] = {LOCAL_DP: row["seconds_per_round"] / local_dp}
        rows, dim = rows + here, measured.task.dim
    return {"rows": rows, "targets": compared(rows), "dataset": plan.dataset, "d": dim, "machine": facts}


def _our_rows(plan: Plan, gate: str, measured: RunResult) -> list[dict[str, Any]]:
    counted = measured.phases[plan.warm_up :]
    unchecked = [{name: s for name, s in phases.items() if name not in OF_VALIDATION} for phases in counted]
    whole = _row(PRECAD, gate, counted) | _fields_of(measured.processor_time)
    return [whole, _row(WITHOUT_VALIDATION, gate, unchecked)]


def _fields_of(spent: ProcessorTime | None) -> dict[str, Any]:
    return spent.fields() if spent else {"servers_cpu_s": None}


def _drawn(plan: Plan, measured: RunResult) -> float:
    """Return how many clients a round had, in the mean: every deployment draws its own."""
    return mean(map(len, measured.chosen[plan.warm_up :]))


def _baselines(plan: Plan, gate: str, measured: RunResult, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield a row of local DP, with mode `proved` one of bare servers, and at the last gate the other baselines."""
    is_last, of_process = gate == plan.gates[-1], plan.clients_per_process
    measures: dict[str, Callable[..., tuple[list[dict[str, float]], ProcessorTime | None]]]
    measures = {name: partial(measure_plain, name) for name in ((LOCAL_DP, NO_PRIVACY) if is_last else (LOCAL_DP,))}
    if gate == PROVED:
        measures[BARE_SERVERS] = bare_servers.measure
    for setting, measure in measures.items():
        say(f"{setting}, over gRPC and TLS, the same clients chosen")
        rounds, spent = measure(
            measured.task,
            plan.client,
            clients_per_process=of_process,
            chosen=measured.chosen,
            warm_up=plan.warm_up,
        )
        yield _row(setting, gate, rounds[plan.warm_up :]) | _fields_of(spent)
    if is_last:
        say(f"{LOCAL_DP_PIPES}, the same clients chosen")
        with PlainTraining(measured.task, plan.client, of_process) as pipes:
            yield _row(LOCAL_DP_PIPES, gate, pipes.rounds(measured.chosen)[plan.warm_up :])


def _delayed(plan: Plan, gate: str, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield a row for each delay between the aggregators."""
    for delay_ms in plan.delays_ms if gate in (NATIVE, PROVED) else ():
        say(f"{PRECAD}, {gate}, {delay_ms:g} ms between the aggregators in each direction")
        measured = measured_run.run(plan.config(gate), warm_up=plan.warm_up, delay_s=delay_ms / 1e3)
        row = _row(PRECAD, gate, measured.phases[plan.warm_up :])
        own = {"delay_ms": delay_ms, "clients": _drawn(plan, measured)}
        yield row | own | _fields_of(measured.processor_time)


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets of mode `proved` with what was measured, where it was."""
    whole = {row["gate"]: row for row in rows if row["setting"] == PRECAD and not row["delay_ms"]}
    if PROVED not in whole:
        return []
    found = [(f"round / {LOCAL_DP}", ROUND_TARGET, whole[PROVED]["ratio"][LOCAL_DP])]
    ours, of_native = (_cpu_s_of_a_client(whole.get(gate, {})) for gate in (PROVED, NATIVE))
    if ours and of_native:
        found.append((f"servers' processor time of a client / {NATIVE}", PROCESSOR_TARGET, ours / of_native))
    return [
        {"what": what, "target": target, "measured": measured, "met": measured <= target}
        for what, target, measured in found
    ]


def _cpu_s_of_a_client(row: Mapping[str, Any]) -> float | None:
    """Return the seconds of all servers over the clients of a round; None where they were not measured, or no client
    was drawn."""
    of_servers: Mapping[str, float] = row.get("servers_cpu_s") or {}
    return sum(of_servers.values()) / row["clients"] if of_servers and row["clients"] else None


def default_dataset() -> str:
    """Return MNIST where PRECAD_DATA has it, otherwise the bundled digits."""
    return "mnist" if find("MNIST/raw/train-images-idx3-ubyte") is not None else "digits"


def _row(setting: str, gate: str | None, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    names = sorted(rounds[0], key=PHASES.index)
    phases = {name: Spread.of([phases[name] for phases in rounds]).median for name in names}
    return {
        "setting": setting,
        "gate": gate,
        "delay_ms": 0.0,
        **Spread.of([sum(phases.values()) for phases in rounds]).fields("seconds_per_round"),
        "phases_s": phases,
    }
