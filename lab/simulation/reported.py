"""Read the folder of `precad simulate` for a report. It belongs to the laboratory and joins by an entry point.

A simulation writes down its last epsilon only. The draw of clients for a round follows from the seed, so participation
is drawn again, by the simulation's own function. The algorithm is then asked for its guarantees after any number of
rounds. The last must be what the summary says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from precad.clients.attacks import PixelBackdoor, PoisonedRecords
from precad.clients.config import DIVIDED, REACTING, AttackName
from precad.clients.errors import ArgumentError, MissingDataError
from precad.deploy.configuration.sections import parse_section, read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.reporting.answers import Estimated
from precad.deploy.reporting.files import Amount, Count, Epsilon, Share, Written, read_lines, read_object
from precad.deploy.reporting.runs import (
    Evaluation,
    Round,
    Run,
    RunReader,
    Statement,
    Trained,
    is_import_path,
    names_own,
)
from precad.deploy.reporting.settings import shown_client, shown_section, shown_task
from precad.dp.accountants.pld import Unit
from precad.lab.simulation import Simulation, SimulationSettings
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.lab.simulation.earlier import counts_earlier
from precad.lab.simulation.holder_key import FILE, kept_in
from precad.lab.simulation.randomness import drawn
from precad.lab.simulation.simulate import Plan, client_of, resolve
from precad.protos.task.task import Task

POINTS: Final = 24
"""Rounds at which epsilon is computed, the last one among them."""
_TOLERANCE: Final = 1e-6
"""Relative: what another release of a numerical library may change."""
_ByWhom = dict[tuple[str, str], float | None]
"""Epsilons by unit and adversary: folders of before have no guarantee of a whole client."""


def with_epsilon_by_round(run: Run) -> Run:
    """Return the run, its statements with their curves where the configuration can be simulated here; else with a note.

    Raises ConfigError where the summary's epsilons are not those of its configuration and seeds.
    """
    if (what := names_own(run)) is not None:
        return _noted(run, f"its configuration names {what}")
    try:
        plan = resolve(_offline(read_toml(run.folder / "config.toml")))
        if plan.client.holder is not None:
            if not (run.folder / FILE).exists():
                return _noted(run, f"the key that its draws follow from, {FILE}, is not here")
            plan = replace(plan, key=kept_in(run.folder))
        simulation = plan.simulation(0)
    except MissingDataError:
        return _noted(run, f"its data set, {run.client.dataset}, is not on this machine")
    except ArgumentError as error:  # a device that is not here, for one
        return _noted(run, str(error))
    wanted = _some(max(len(trained.rounds) for trained in run.trainings))
    by_seed = [_epsilons(plan, simulation, trained, wanted) for trained in run.trainings]
    return replace(run, statements=tuple(_with_curve(run, one, wanted, by_seed) for one in run.statements))


def _offline(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without leave to download its data set: a report asks nobody for anything."""
    return raw | {"client": {**raw.get("client", {}), "download": False}}


def _noted(run: Run, why: str) -> Run:
    return replace(run, notes=(*run.notes, f"Epsilon by round is not drawn: {why}."))


def _epsilons(plan: Plan, simulation: Simulation, trained: Trained, wanted: Sequence[int]) -> list[_ByWhom]:
    """Return epsilon of each guarantee of one seed after each wanted number of rounds; after its end, as at its end."""
    assert trained.seed is not None  # of a simulation
    randomness, task = plan.sources(trained.seed), plan.task
    participation, n_drawn = Counter[str](), 0
    found: list[_ByWhom] = []
    for rounds in wanted:
        done = min(rounds, len(trained.rounds))
        for t in range(n_drawn, done):
            participation.update(drawn(randomness, task, t))
        n_drawn = done
        said = simulation.algorithm.guarantees(done, participation)
        found.append({(guarantee.unit, guarantee.against): guarantee.epsilon for guarantee in said})
    return found


def _some(n: int) -> list[int]:
    """Return at most POINTS of 1 .. n, evenly spread, with the last one."""
    return sorted({round(n * i / min(n, POINTS)) for i in range(1, min(n, POINTS) + 1)})


def _with_curve(
    run: Run, statement: Statement, wanted: Sequence[int], by_seed: Sequence[Sequence[_ByWhom]]
) -> Statement:
    """Return the statement with the largest epsilon of all seeds by round. Raises ConfigError."""
    about, by_round = (statement.unit.value, statement.against), list[tuple[int, float]]()
    for at, rounds in enumerate(wanted):
        known = [epsilon for seed in by_seed if (epsilon := seed[at].get(about)) is not None]
        if known:
            by_round.append((rounds, max(known)))
    last = by_round[-1][1] if by_round else None
    stated = statement.epsilon if statement.realised is None else statement.realised
    if wanted and not _is_close(last, stated):
        raise ConfigError(
            f"{run.folder}: epsilon against {statement.against:.60}: expected {last!r}, as its configuration and seeds "
            f"say, found {stated!r}"
        )
    return replace(statement, by_round=tuple(by_round))


def _is_close(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and abs(a - b) <= _TOLERANCE * max(a, b))


_ALONE: Final = (*(set(get_args(AttackName)) - {*REACTING, *DIVIDED, PoisonedRecords.name}), PixelBackdoor.name)
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
    evaluation: dict[str, Estimated] = Field(default_factory=dict)


class _Guarantee(Written):
    unit: Literal["record", "client"]
    group_size: Annotated[int, Field(ge=1)] = 1
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
    kinds = [*([] if attack is None else [attack.kind]), *(attacking.kind for attacking in client.attacks.values())]
    return Run(
        folder=path,
        label=path.absolute().name,
        algorithm=settings.algorithm,
        task=task,
        client=client,
        is_simulation=True,
        has_two_servers=has_two_servers,
        is_validated=has_two_servers and settings.validation and task.checks_norms,
        names_other_code=any(map(is_import_path, [*_named(task, settings), *kinds])),
        reacting_attack=next((kind for kind in kinds if kind not in _ALONE), None),
        trainings=tuple(_training(path, seed, task) for seed in summary.seeds),
        statements=_costliest(path, summary.seeds),
        cost=None,
        counts_earlier_tasks=counts_earlier(raw),
        configuration={
            **shown_task(task),
            **shown_client(client),
            **shown_section("simulation", settings.model_dump()),
        },
    )


def _named(task: Task, settings: SimulationSettings) -> list[str]:
    """Return the names in the configuration that may be an import path."""
    return [task.model, settings.algorithm, settings.aggregation]


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
        evaluations=tuple(
            Evaluation(n_done=line.round + 1, figures=line.evaluation) for line in lines if line.evaluation
        ),
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
    about = [[(found.unit, found.group_size, found.against) for found in seed.guarantees] for seed in seeds]
    if any(other != about[0] for other in about):
        raise ConfigError(f"{path}: expected the same guarantees for every seed, found others")
    largest = [
        max(same, key=lambda found: math.inf if found.epsilon is None else found.epsilon)
        for same in zip(*(seed.guarantees for seed in seeds), strict=True)
    ]
    return tuple(
        Statement(
            unit=Unit(found.unit),
            group_size=found.group_size,
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
