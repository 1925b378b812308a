"""Reads the folder of `precad simulate` for a report. It belongs to the laboratory and joins by an entry point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from precad.clients.attacks import PixelBackdoor
from precad.clients.config import AttackName
from precad.deploy.configuration.sections import parse_section, read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.reporting.files import Amount, Count, Epsilon, Share, Written, read_lines, read_object
from precad.deploy.reporting.runs import Round, Run, RunReader, Statement, Trained, is_import_path
from precad.deploy.reporting.settings import shown_client, shown_section, shown_task
from precad.dp.accountants.pld import Unit
from precad.lab.simulation import SimulationSettings
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.lab.simulation.replay import with_epsilon_by_round
from precad.lab.simulation.simulate import client_of
from precad.protos.task.task import Task

_ALONE: Final = (*get_args(AttackName), PixelBackdoor.name)
"""Attacks that look at nothing but the attacker's own: further attackers do not change what these send."""


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
    accuracy: Share | None
    metrics: dict[str, float] = Field(default_factory=dict)
    attack_success: Share | None
    rejected: Count
    rejected_clients: list[str]
    guarantees: Annotated[list[_Guarantee], Field(min_length=1)]


class _Summary(Written):
    """summary.json."""

    algorithm: str
    seeds: Annotated[list[_Seed], Field(min_length=1)]


def read_simulated(path: Path) -> Run:
    """Read finished trainings. Raises ConfigError where a file is missing or damaged, or files contradict each
    other."""
    raw = read_toml(path / "config.toml")
    task = parse_section(Task, raw.get("task", {}), "task", base=path)
    client = client_of(_section(path, raw.get("client", {})))
    settings = parse_section(SimulationSettings, raw.get("simulation", {}), "simulation", base=path)
    summary = read_object(path / "summary.json", _Summary)
    for seed, n in Counter(training.seed for training in summary.seeds).items():
        if n > 1:  # each counts as a training of its own
            raise ConfigError(f"{path}: seeds: expected different ones, found {seed} {n} times")
    if summary.algorithm != settings.algorithm:
        raise ConfigError(f"{path}: algorithm: expected {settings.algorithm!r}, found {summary.algorithm!r}")
    attack, kind = settings.attack, ALGORITHMS.get(settings.algorithm)
    has_two_servers = kind is not None and kind.has_two_servers
    return Run(
        folder=path,
        label=path.absolute().name,
        algorithm=settings.algorithm,
        task=task,
        client=client,
        is_simulation=True,
        has_two_servers=has_two_servers,
        is_validated=has_two_servers and settings.validation,
        names_other_code=any(map(is_import_path, _named(task, settings))),
        reacting_attack=None if attack is None or attack.kind in _ALONE else attack.kind,
        trainings=tuple(_training(path, seed, task) for seed in summary.seeds),
        statements=_costliest(path, summary.seeds),
        cost=None,
        configuration={
            **shown_task(task),
            **shown_client(client),
            **shown_section("simulation", settings.model_dump()),
        },
    )


def _named(task: Task, settings: SimulationSettings) -> list[str]:
    """Return the names in the configuration that may be an import path."""
    attack = [] if settings.attack is None else [settings.attack.kind]
    return [task.model, settings.algorithm, settings.aggregation, *attack]


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
        metrics=seed.metrics,
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
    """Return each statement with the largest epsilon of all seeds; nothing where one has nothing. Raises
    ConfigError."""
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


class _Reader:
    """The laboratory's `RunReader`."""

    def read(self, path: Path) -> Run:
        """See RunReader."""
        return read_simulated(path)

    def completed(self, run: Run) -> Run:
        """Add epsilon by round, which a simulation does not write down."""
        return with_epsilon_by_round(run)


READER: Final[RunReader] = _Reader()
"""Object that the entry point names."""
