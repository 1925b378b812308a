"""`precad simulate`: a deployment's task in one process, for as many seeds as asked for.

The file is that of `precad run`, with a section `[simulation]` where it says more (`precad.lab.simulation.config`); the
sections of servers and operators are ignored. A run leaves one folder:

    config.toml   the resolved configuration: `precad simulate` on it repeats the runs
    seed-N.jsonl  one line per round
    seed-N.npz    where the training stands, as of its last evaluation; the final model at the end
    summary.json  what `--json` prints
    holder.json   what was paid under `[client.holder]`; holder.key, the secret that its draws follow from

A folder that holds the same configuration is continued: finished seeds stay, others start from where they stand. It
also holds digests of apps (`precad.lab.simulation.app_digests`): other records or other code are refused. A
field that the folder's file does not have, being older, has its default there. More rounds than the folder's may be
asked for: every seed continues to the model that it would have without the halt. A training that leaves the finite
numbers ends before the round in which it does, and the summary says so. The files are all there, and the command ends
with exit code 3 (`require_fulfilled`). For experiments it is a result.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.attacks.attack import Attack
from precad.clients.attacks.named import attacks_of
from precad.clients.config import ClientConfig
from precad.clients.gradients.engine import RecordEngine, resolve_device
from precad.clients.models.learning import Learning
from precad.clients.records import Records, Split
from precad.deploy.configuration.auditing import refuse_audit_clients
from precad.deploy.configuration.client_ids import ids_of
from precad.deploy.configuration.initial_model import DIGEST, FILE, read_given
from precad.deploy.configuration.local import require_enrolled_attackers
from precad.deploy.configuration.model_and_records import (
    complete_task,
    local_source,
    supply_model_digest,
    supply_own_records,
)
from precad.deploy.configuration.sections import parse_section, section_of
from precad.deploy.errors import ConfigError, UnfulfilledError, refusing
from precad.deploy.files.whole import write_whole
from precad.deploy.shown.found import found_shown
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.lab.simulation import RoundMetrics, SeededRandomness, Simulation, SimulationSettings, holder_key, records_of
from precad.lab.simulation.algorithms import Deployed
from precad.lab.simulation.earlier import earlier_of
from precad.lab.simulation.holder_charge import (
    Draws,
    HolderCharge,
    Owed,
    key_of,
    note_paid,
    owed_by_seeds,
    require_configuration,
    require_records,
    sealed,
)
from precad.lab.simulation.kept import alone_in, kept_lines, moments_in, require_kept, saved_training
from precad.lab.simulation.progress import Trainings
from precad.lab.simulation.randomness import KeyedRandomness, Sources
from precad.lab.simulation.training import Progress
from precad.lab.simulation.workers import Workers
from precad.protos.messages.spoken import shown
from precad.protos.task.algorithms import names_default
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.model_update import Past, learnt_bound
from precad.protos.task.task import Task

NOT_SIMULATED: Final = ("network", "aggregator", "dealer", "operator", "localhost")
"""Sections of a deployment that a simulation has no use for."""
LAST_EVALUATIONS: Final = 5
"""Over which the summary's accuracy is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A resolved configuration: everything but the seed."""

    raw: dict[str, Any]
    task: Task
    settings: SimulationSettings
    client: ClientConfig
    split: Split
    records: dict[str, Records]
    initial: NDArray[np.float32] | None = None
    """In place of the task's initial model, (d,)."""
    held_out: dict[str, Records] = field(default_factory=dict)
    """Those that clients evaluate models on, where the task has such evaluations."""
    learning: Learning | None = None
    """In place of the model, the loss and the metrics that the configuration names."""
    earlier: tuple[tuple[EarlierTask, ...], ...] = ()
    """By server, finished tasks of the same clients that `[aggregator.a]` and `[aggregator.b]` name."""
    key: bytes = field(default_factory=holder_key.fresh, repr=False)
    """Secret that trainings draw from which a holder pays for: a run folder has its own."""

    def sources(self, seed: int) -> Sources:
        """Return what the training number `seed` draws from: a secret key, where its records' holder has a limit."""
        number = self.settings.first_seed + seed
        return SeededRandomness(number) if self.client.holder is None else KeyedRandomness(self.key, number)

    @property
    def seal(self) -> str:
        """Return what stands for the records in a folder whose trainings are paid for."""
        return sealed(self.key, self.records, self.held_out)

    @property
    def configuration(self) -> str:
        """Return a digest, in hexadecimal, of what is trained on the records, for however many rounds."""
        initial = b"" if self.initial is None else self.initial.tobytes()
        fields = {
            "task": self.task.model_dump(mode="json", exclude={"rounds"}, exclude_defaults=True),
            "simulation": self.settings.model_dump(mode="json", exclude={"initial_model"}, exclude_defaults=True),
            "app": section_of(self.raw, "app"),
            "adapter_rank": self.client.adapter_rank,
            "initial": hashlib.sha256(initial).hexdigest(),
        }
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def simulation(self, seed: int, engine: RecordEngine | None = None) -> Simulation:
        """Return the training number `seed`, which has not begun. Raises ArgumentError."""
        return self.drawing(self.sources(seed), engine=engine)

    def drawing(
        self, sources: Sources, *, attacks: Mapping[str, Attack] | None = None, engine: RecordEngine | None = None
    ) -> Simulation:
        """Return a training that has not begun and draws from these sources.

        attacks: malicious clients beside those of the configuration. Raises ArgumentError.
        """
        return Simulation(
            task=self.task,
            settings=self.settings,
            records=self.records,
            test=self.split.test,
            randomness=sources,
            attacks={**attacks_of(self.client), **(attacks or {})},
            held_out=self.held_out,
            device=self.client.device,
            memory_mb=self.client.memory_mb,
            adapter_rank=self.client.adapter_rank,
            engine=engine,
            initial=self.initial,
            learning=Learning.of_task(self.task, self.client.metrics) if self.learning is None else self.learning,
            earlier=self.earlier,
        )


def refuse_unknown_sections(raw: Mapping[str, Any]) -> None:
    """Raise ConfigError for a section that a configuration has not, or a task's field that stands outside of it."""
    unknown = [name for name in raw if name not in ("task", "client", "simulation", *NOT_SIMULATED)]
    if unknown:
        found = found_shown(raw[unknown[0]], unknown[0])
        raise ConfigError(f"{shown(unknown[0])}: expected one of task, client, simulation, found {found}")


def resolve(raw: Mapping[str, Any], *, rounds: int | None = None) -> Plan:
    """Return the configuration with what it leaves out: the dimension, who has how many records. Raises ConfigError,
    DataError, SetupError.

    `rounds`: in place of the task's. `task.clients` may also be a number.
    """
    refuse_unknown_sections(raw)
    sections = sections_of(raw)
    task, client = sections["task"], sections["client"]
    if not names_default(task):
        sections["simulation"].setdefault("algorithm", Deployed.name)
    settings = parse_section(SimulationSettings, sections["simulation"], "simulation", base=Path())
    supply_own_records(client, holds_out=task.get("evaluation") == BY_CLIENTS)
    config = simulated_client(client)
    refuse_audit_clients(task)
    if rounds is not None:
        task["rounds"] = rounds
    clients = task.get("clients")  # of a table the numbers are declared, whatever the data set deals
    ids = None if isinstance(clients, Mapping) else ids_of(clients)
    source = local_source(config, {**task, "clients": clients if ids is None else ids})
    split = complete_task(task, client, source, ids)
    supply_model_digest(task, split)
    valid = parse_section(Task, task, "task", base=Path())
    return Plan(
        **beside_records(raw, sections, valid, settings, config),
        split=split,
        records=records_of(split, source.parts(split, len(valid.clients)), list(valid.clients)),
        held_out={}
        if valid.evaluation_round is None
        else source.held_out_of(split, list(valid.clients), list(valid.clients)),
    )


def sections_of(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections that a simulation reads. A local run's initial model is its own. Raises ConfigError."""
    sections = {name: section_of(raw, name) for name in ("task", "client", "simulation")}
    if not sections["simulation"].keys() & {FILE, DIGEST}:  # one file may be run and simulated
        of_run = section_of(raw, "localhost")
        sections["simulation"] |= {name: of_run[name] for name in (FILE, DIGEST) if name in of_run}
    return sections


def simulated_client(section: dict[str, Any]) -> ClientConfig:
    """Return the `[client]` section. A holder's ledger is in it by its full path then. Raises ConfigError."""
    config = client_of(section)
    if config.holder is not None:  # a folder's configuration pays from the same ledger, wherever it is read
        section["holder"] = {**section["holder"], "ledger": str(config.holder.ledger)}
    if config.trainer is not None:
        raise ConfigError(
            f"client.trainer: expected none in a simulation, whose clients are no processes, found {config.trainer!r}"
        )
    return config


def beside_records(
    raw: Mapping[str, Any],
    sections: Mapping[str, dict[str, Any]],
    task: Task,
    settings: SimulationSettings,
    client: ClientConfig,
) -> dict[str, Any]:
    """Return the fields of a plan that do not depend on whose records it takes: earlier tasks, where it starts.

    Raises ConfigError, SetupError.
    """
    require_enrolled_attackers(client, task)
    named, earlier = earlier_of(raw, task)
    initial = _initial_of(settings, sections["simulation"], task)
    resolved = {
        "task": task.model_dump(exclude_none=True),
        **{name: sections[name] for name in ("client", "simulation")},
    }
    return {
        "raw": {**resolved, **named},
        "task": task,
        "settings": settings,
        "client": client,
        "initial": initial,
        "earlier": earlier,
    }


def _initial_of(settings: SimulationSettings, section: dict[str, Any], task: Task) -> NDArray[np.float32] | None:
    """Return the public model that the settings name, (d,). Its digest goes into the section, and where it lies in
    full.

    Raises ConfigError, SetupError.
    """
    if settings.initial_model is None:
        return None
    given = read_given("simulation", settings.initial_model, settings.initial_model_sha256, task)
    section |= given.fields
    return given.parameters


def client_of(section: Mapping[str, Any]) -> ClientConfig:
    """Return the `[client]` section of a simulation, whose clients have no certificates. Raises ConfigError."""
    nowhere = {"certificates": ".", "authority": "."}  # nobody shows any
    return parse_section(ClientConfig, {**nowhere, **section}, "client", base=Path().absolute())


class Runs:
    """The runs of one plan in one folder."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Raises ConfigError when the folder holds something else, or more rounds."""
        self.plan, self.folder = plan, folder
        config = folder / "config.toml"
        with _writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if config.exists():
                _require_same(plan, config)
            elif any(not path.name.startswith(".config.toml") for path in folder.iterdir()):  # of a killed process
                raise ConfigError(f"--output: expected a new or empty folder, found files in {folder}")
            resolved = tomli_w.dumps(plan.raw)
            if not config.exists() or config.read_text() != resolved:  # as it is, workers beside us may read it
                write_whole(config, resolved.encode())

    def run(
        self,
        seed: int,
        *,
        on_round: Callable[[RoundMetrics], None] = lambda metrics: None,
        engine: RecordEngine | None = None,
    ) -> dict[str, Any]:
        """Run one seed to its end, from wherever it stands; return its summary. Raises ConfigError."""
        simulation = self.plan.simulation(seed, engine)
        metrics = self.folder / f"seed-{seed}.jsonl"
        self._resume(simulation, seed, metrics)
        start, lines = time.perf_counter(), list[str]()
        for done in simulation.run():
            lines.append(json.dumps(done.to_json()) + "\n")
            on_round(done)
            if done.is_evaluated:
                self._keep(simulation, seed, metrics, lines)
        self._keep(simulation, seed, metrics, lines)
        return self._summary(simulation, seed, metrics, time.perf_counter() - start)

    def jobs(self, seeds: Sequence[int]) -> list[Callable[[], dict[str, Any]]]:
        """Return `run` of each seed as something that can be pickled: a worker reads the data set itself."""
        return [partial(_train_seed, self.plan.raw, self.folder.absolute(), seed) for seed in seeds]

    def _keep(self, simulation: Simulation, seed: int, metrics: Path, lines: list[str]) -> None:
        """Write the rounds' lines, which are then forgotten, and where the run stands. Raises ConfigError."""
        with _writing_to(self.folder):
            with metrics.open("a") as file:
                file.writelines(lines)
            lines.clear()
            self._save(simulation, seed)

    def _save(self, simulation: Simulation, seed: int) -> None:
        """Save in one step: a run that is killed here finds the old file or the new one."""
        now, rule = simulation.progress, simulation.federation.rule
        half_written = self.folder / f".seed-{seed}.npz"
        with half_written.open("wb") as file:
            np.savez(
                file,
                parameters=now.parameters,
                rounds=np.int64(now.rounds),
                clients=np.array(list(now.participation), dtype=np.str_),
                participation=np.array(list(now.participation.values()), dtype=np.int64),
                rule=np.array(() if rule is None else rule.state(), dtype=np.int64),
                algorithm=np.array(simulation.algorithm.state(), dtype=np.float64),
                moments=simulation.algorithm.past.moments,
            )
        os.replace(half_written, self.folder / f"seed-{seed}.npz")

    def _resume(self, simulation: Simulation, seed: int, metrics: Path) -> None:
        path = self.folder / f"seed-{seed}.npz"
        rounds = 0
        if path.exists():
            with saved_training(path) as saved:
                rounds = int(saved["rounds"])
                counts = dict(zip(saved["clients"].tolist(), saved["participation"].tolist(), strict=True))
                simulation.progress = Progress(saved["parameters"], rounds, Counter(counts))
                self._require_allowed(simulation, seed, rounds)
                if simulation.federation.rule is not None:
                    simulation.federation.rule.restore(tuple(saved["rule"].tolist()))
                if "algorithm" in saved or simulation.algorithm.state():
                    simulation.algorithm.restore(tuple(saved["algorithm"].tolist()))
                simulation.algorithm.past = Past(rounds, moments_in(saved, simulation.task))
        # Rounds after the last save are trained again, to the same bits.
        with _writing_to(self.folder):
            write_whole(metrics, kept_lines(metrics, rounds))

    def _require_allowed(self, simulation: Simulation, seed: int, rounds: int) -> None:
        """Refuse rounds that budgets do not allow beside earlier ledgers, which may have grown since.

        Raises ConfigError.
        """
        if not self.plan.earlier:
            return
        may_start, may_evaluate = simulation.algorithm.may_start, simulation.algorithm.may_evaluate
        allowed = Draws(self.plan.task, self.plan.sources(seed), may_start, may_evaluate).owed(rounds).rounds
        if allowed < rounds:
            raise ConfigError(
                f"--output: expected at most {allowed} rounds, which budgets allow beside the earlier ledgers, found "
                f"{rounds} of seed {seed} in {self.folder}"
            )

    def _summary(self, simulation: Simulation, seed: int, metrics: Path, seconds: float) -> dict[str, Any]:
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        rounds, diverged = simulation.progress.rounds, simulation.diverged
        every = self.plan.settings.evaluate_every
        due = [line for line in lines if (line["round"] + 1) % every == 0 or line["round"] + 1 == rounds]
        in_rounds = sum(line["seconds"] for line in lines)
        return {
            "seed": seed,
            "rounds": rounds,
            "ended": _ended(simulation),
            "diverged_in_round": None if diverged is None else diverged.round,
            "model_is_finite": simulation.is_finite(),
            "accuracy": simulation.accuracy(),
            **({"metrics": found} if (found := simulation.measured()) else {}),
            "accuracy_of_last_evaluations": _mean_of_last(due, "accuracy"),
            "learnt_bound": learnt_bound(simulation.progress.parameters, simulation.task),
            "attack_success": simulation.attack_success(),
            "attack_success_of_last_evaluations": _mean_of_last(due, "attack_success"),
            "rejected": sum(len(line["rejected"]) for line in lines),
            "rejected_clients": sorted({client for line in lines for client in line["rejected"]}),
            "rounds_per_second": rounds / in_rounds if in_rounds else None,
            "seconds": seconds,
            "guarantees": [guarantee.to_json() for guarantee in simulation.guarantees()],
        }


def _require_same(plan: Plan, config: Path) -> None:
    """Raises ConfigError unless the file has the plan's configuration but for, at most, fewer rounds.

    Rounds that were done under other earlier ledgers may be more than a budget allows with these.
    """
    try:
        found = tomllib.loads(config.read_text(encoding="utf-8-sig"))
        rounds = int(found["task"]["rounds"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"--output: expected a resolved configuration, found {config}: {error}") from None
    if plan.task.rounds < rounds:
        raise ConfigError(
            f"--output: expected a folder of at most {plan.task.rounds} rounds, found {rounds} in {config}"
        )
    found["task"]["rounds"] = plan.task.rounds
    if plan.task.model_digest is not None:  # an earlier version wrote none
        found["task"].setdefault("model_digest", plan.task.model_digest)
    with refusing(ConfigError, f"--output: expected a configuration of this version, found {config}"):
        wanted, given = _completed(found), _completed(plan.raw)
    ours, theirs = section_of(plan.raw, "app"), section_of(found, "app")
    if ours != theirs:  # of objects, which the file cannot hold: digests of records and code
        names = ", ".join(f"app.{name}" for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name))
        raise ConfigError(f"--output: expected the same records and code of apps, found others in {config}: {names}")
    if section_of(plan.raw, "aggregator") != section_of(found, "aggregator"):
        raise ConfigError(f"--output: expected the same earlier ledgers, found others in {config}")
    if others := [name for name in given if given[name] != wanted[name]]:
        name = others[0]
        if name.startswith("client."):  # where a trainer's settings are, which may be secrets
            raise ConfigError(f"{name}: expected what {config} says, found another value")
        raise ConfigError(f"{name}: expected {wanted[name]!r:.60}, as in {config}, found {given[name]!r:.60}")


def _completed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return its sections' fields with all defaults: a file from before there was a field says what its default says.
    Where an initial model lies is left out: its digest says which it is.

    Raises ConfigError.
    """
    sections = (
        parse_section(Task, section_of(resolved, "task"), "task", base=Path()),
        client_of(section_of(resolved, "client")),
        parse_section(SimulationSettings, section_of(resolved, "simulation"), "simulation", base=Path()),
    )
    fields = (section.model_dump(exclude={"initial_model"}) for section in sections)
    named = zip(("task", "client", "simulation"), fields, strict=True)
    return {f"{section}.{name}": value for section, values in named for name, value in values.items()}


def _mean_of_last(lines: Sequence[Mapping[str, Any]], measure: str) -> float | None:
    """Return the mean over the last evaluations; None where there is none."""
    values = [line[measure] for line in lines if measure in line][-LAST_EVALUATIONS:]
    return statistics.fmean(values) if values else None


def _ended(simulation: Simulation) -> str:
    if simulation.diverged is not None:
        return str(simulation.diverged)
    is_done = simulation.progress.rounds == simulation.task.rounds
    return "all rounds done" if is_done else "the budget allows no further round"


def run_plan(
    plan: Plan, folder: Path, seeds: Sequence[int], console: Console, workers: Workers | None = None
) -> dict[str, Any]:
    """Run all seeds, one after the other unless there are workers; return the summary, which is also written.

    Raises ConfigError, ArgumentError.
    """
    with alone_in(folder):
        return _run_all(plan, folder, seeds, console, workers)


def _run_all(
    plan: Plan, folder: Path, seeds: Sequence[int], console: Console, workers: Workers | None
) -> dict[str, Any]:
    plan = _to_train(folder, plan)
    first = plan.simulation(seeds[0])  # what it refuses leaves no folder behind
    first.measured()
    engine = first.federation.engine
    charge, owed = _charge(plan, first, folder, seeds)
    runs = Runs(plan, folder)
    require_kept(folder, seeds)
    if charge is not None:
        require_configuration(folder, plan.configuration)
        holder_key.keep(folder, plan.key)
        charge.pay()
        note_paid(folder, owed, plan.seal, plan.configuration)
    with Trainings(console, len(seeds)) as trainings:
        if workers is None:
            summaries = _one_by_one(runs, seeds, engine, trainings)
        else:
            summaries = trainings.side_by_side(runs.jobs(seeds), workers)
    summary = {
        "name": plan.task.name,
        "algorithm": plan.settings.algorithm,
        "task_algorithm": plan.task.algorithm,
        "model": plan.task.model,
        "model_arguments": plan.task.model_arguments,
        "dim": plan.task.dim,
        "clients": len(plan.task.clients),
        "device": str(resolve_device(plan.client.device)),
        "threads": torch.get_num_threads(),
        "output": str(folder),
        **({} if charge is None else {"holder_uploads_paid": dict(charge.uploads)}),
        "seeds": summaries,
    }
    with _writing_to(folder):
        write_whole(folder / "summary.json", (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())
    return summary


def _writing_to(folder: Path) -> AbstractContextManager[None]:
    """Raise ConfigError in place of what the system says against a file of the run, such as that its disk is full."""
    return refusing(OSError, f"--output: expected a folder to write to, found {folder}")


def _to_train(folder: Path, plan: Plan) -> Plan:
    """Return the plan with the folder's key, for the records that were paid for there. Raises ConfigError."""
    if plan.client.holder is None:
        return plan
    plan = replace(plan, key=key_of(folder))
    require_records(folder, plan.seal)
    return plan


def _charge(
    plan: Plan, first: Simulation, folder: Path, seeds: Sequence[int]
) -> tuple[HolderCharge | None, dict[int, Owed]]:
    """Return what the trainings cost, which there is room for; None without `[client.holder]`.

    Raises: ConfigError, ArgumentError, StateFileError.
    """
    if plan.client.holder is None:
        return None, {}
    budgets = first.algorithm.may_start, first.algorithm.may_evaluate
    owed = owed_by_seeds(plan.task, {seed: plan.sources(seed) for seed in seeds}, budgets, folder)
    charge = HolderCharge(plan.task, plan.settings, plan.client, owed.values())
    charge.require_room()
    return charge, owed


def require_fulfilled(summary: Mapping[str, Any]) -> None:
    """Raise UnfulfilledError, a line for each seed, where a training diverged or had no round."""
    faults = []
    for run in summary["seeds"]:
        if run["diverged_in_round"] is not None or run["rounds"] == 0:
            faults.append(f"seed {run['seed']}: {run['rounds']} rounds done: {run['ended']}")
        elif not run["model_is_finite"]:
            faults.append(f"seed {run['seed']}: the training diverged: the model is not finite")
    if faults:
        raise UnfulfilledError("\n".join(faults))


def _one_by_one(runs: Runs, seeds: Sequence[int], engine: RecordEngine, trainings: Trainings) -> list[dict[str, Any]]:
    summaries = []
    for seed in seeds:
        with trainings.one(f"seed {seed}", runs.plan.task.rounds) as advance:
            summaries.append(runs.run(seed, on_round=advance, engine=engine))
    return summaries


def _train_seed(raw: Mapping[str, Any], folder: Path, seed: int) -> dict[str, Any]:
    """Run one seed's training, in a worker."""
    return Runs(_to_train(folder, resolve(raw)), folder).run(seed)
