"""The folder of `precad simulate`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from clients.config import ClientConfig
from clients.simulation import SimulationSettings
from deploy.config import parse_section, read_toml
from deploy.errors import ConfigError
from deploy.reporting.files import Amount, Count, Epsilon, Share, Written, read_lines, read_object
from deploy.reporting.runs import Round, Run, Statement, Trained
from deploy.reporting.settings import shown_simulation
from dp.accounting import Unit
from protos.task import Task


class _Line(Written):
    """One line of seed-N.jsonl."""

    round: Count
    chosen: Count
    accepted: Count
    rejected: list[str]
    seconds: Amount
    accuracy: Share | None = None
    attack_success: Share | None = None


class _Guarantee(Written):
    unit: Literal["record", "client"]
    against: str
    epsilon: Epsilon | None
    epsilon_if_discarded: Epsilon | None = None
    delta: Annotated[float, Field(ge=0, lt=1)]
    note: str


class _Seed(Written):
    seed: Count
    rounds: Count
    ended: str
    accuracy: Share
    attack_success: Share | None
    rejected: Count
    rejected_clients: list[str]
    guarantees: Annotated[list[_Guarantee], Field(min_length=1)]


class _Summary(Written):
    """summary.json."""

    algorithm: str
    seeds: Annotated[list[_Seed], Field(min_length=1)]


def read_simulated(path: Path) -> Run:
    """Finished trainings. Raises ConfigError where a file is missing or damaged, or files contradict each other."""
    raw = read_toml(path / "config.toml")
    task = parse_section(Task, raw.get("task", {}), "task", base=path)
    nowhere = {"certificates": ".", "authority": "."}  # nobody shows any
    client = parse_section(ClientConfig, {**nowhere, **_section(path, raw.get("client", {}))}, "client", base=path)
    settings = parse_section(SimulationSettings, raw.get("simulation", {}), "simulation", base=path)
    summary = read_object(path / "summary.json", _Summary)
    for seed, n in Counter(training.seed for training in summary.seeds).items():
        if n > 1:  # each counts as a training of its own
            raise ConfigError(f"{path}: seeds: expected different ones, found {seed} {n} times")
    if summary.algorithm != settings.algorithm:
        raise ConfigError(f"{path}: algorithm: expected {settings.algorithm!r}, found {summary.algorithm!r}")
    return Run(
        folder=path,
        label=path.absolute().name,
        algorithm=settings.algorithm,
        task=task,
        client=client,
        settings=settings,
        trainings=tuple(_training(path, seed, task) for seed in summary.seeds),
        statements=_costliest(path, summary.seeds),
        cost=None,
        configuration=shown_simulation(task, client, settings),
    )


def _section(path: Path, found: object) -> dict[str, object]:
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: client: expected a section, found {found!r:.60}")
    return found


def _training(path: Path, seed: _Seed, task: Task) -> Trained:
    file = path / f"seed-{seed.seed}.jsonl"
    lines = read_lines(file, _Line) if seed.rounds else []
    rejected = sum(len(line.rejected) for line in lines)
    if [line.round for line in lines] != list(range(seed.rounds)) or seed.rounds > task.rounds:
        raise ConfigError(f"{file}: expected the {seed.rounds} rounds of summary.json, found {len(lines)} lines")
    if rejected != seed.rejected:
        raise ConfigError(f"{file}: expected {seed.rejected} rejected uploads, found {rejected}")
    return Trained(
        seed=seed.seed,
        rounds=tuple(_round(file, line) for line in lines),
        ended=seed.ended,
        accuracy=seed.accuracy,
        attack_success=seed.attack_success,
        rejected_clients=tuple(seed.rejected_clients),
    )


def _round(file: Path, line: _Line) -> Round:
    n_rejected = len(line.rejected)
    n_missing = line.chosen - line.accepted - n_rejected
    if n_missing < 0:
        raise ConfigError(f"{file}: expected at most {line.chosen} uploads in round {line.round}, found more")
    return Round(
        n_done=line.round + 1,
        n_accepted=line.accepted,
        n_rejected=n_rejected,
        n_missing=n_missing,
        seconds=line.seconds,
        accuracy=line.accuracy,
        attack_success=line.attack_success,
    )


def _costliest(path: Path, seeds: Sequence[_Seed]) -> tuple[Statement, ...]:
    """Each statement with the largest epsilon of all seeds; nothing where one has nothing. Raises ConfigError."""
    about = [[(found.unit, found.against) for found in seed.guarantees] for seed in seeds]
    if any(other != about[0] for other in about):
        raise ConfigError(f"{path}: expected the same guarantees for every seed, found others")
    largest = [
        max(same, key=lambda found: math.inf if found.epsilon is None else found.epsilon)
        for same in zip(*(seed.guarantees for seed in seeds), strict=True)
    ]
    return tuple(
        Statement(
            unit=Unit(found.unit),
            against=found.against,
            epsilon=found.epsilon if found.epsilon_if_discarded is None else found.epsilon_if_discarded,
            realised=None if found.epsilon_if_discarded is None else found.epsilon,
            delta=found.delta,
            note=found.note,
        )
        for found in largest
    )
