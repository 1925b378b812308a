"""The folder of `precad demo` and `precad run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from clients.config import ClientConfig
from deploy import config as configuration
from deploy.config import Deployment
from deploy.errors import ConfigError
from deploy.reporting.files import Amount, Count, Epsilon, Share, Written, read_lines, read_object
from deploy.reporting.runs import AGAINST, Cost, Round, Run, Statement, Trained
from deploy.reporting.settings import shown_configuration
from deploy.run_folder import RunFolder
from dp.accounting import Unit, View
from dp.ledger import Level
from dp.task_privacy import task_privacy
from protos.task import Task

_PHASES: Final = ("select", "collect", "lock", "charge", "validate", "noise", "open", "commit")
_LINKS: Final = ("clients_to_a", "clients_to_b", "a_to_b", "b_to_a", "dealer_to_a", "dealer_to_b")


class _Line(Written):
    """One line of metrics.jsonl."""

    round: Count
    participants: list[str]
    accepted: list[str]
    rejected: list[str]
    missing: list[str]
    bytes: dict[Literal["clients_to_a", "clients_to_b", "a_to_b", "b_to_a", "dealer_to_a", "dealer_to_b"], Count]
    seconds: dict[str, Amount]
    seconds_total: Amount
    epsilon_one_server: Epsilon
    epsilon_clients_only: Epsilon
    accuracy: Share | None


class _Summary(Written):
    """summary.json."""

    rounds: Annotated[int, Field(ge=1)]
    processes: Count
    accuracy: Share
    epsilon_one_server: Epsilon
    epsilon_clients_only: Epsilon
    epsilon_client: Epsilon | None = None
    delta: Annotated[float, Field(gt=0, lt=1)]
    accepted: Count
    rejected: Count
    missing: Count
    rejected_clients: list[str]
    seconds_total: Amount
    bytes_client_up: Count
    bytes_server_link: Count
    ended: str


def read_deployed(path: Path) -> Run:
    """A finished run. Raises ConfigError where a file is missing or damaged, or files contradict each other."""
    folder = RunFolder(path)
    deployment = configuration.load(folder.config)
    summary = read_object(folder.summary, _Summary)
    lines = read_lines(folder.metrics, _Line)
    _require_agreement(path, deployment.task, summary, lines)
    return Run(
        folder=path,
        label=path.absolute().name,
        algorithm=deployment.task.algorithm,
        task=deployment.task,
        client=_client(deployment, path),
        settings=None,
        trainings=(_training(summary, lines),),
        statements=_statements(deployment.task, summary, lines),
        cost=_cost(summary, lines),
        configuration=shown_configuration(deployment),
    )


def _client(deployment: Deployment, path: Path) -> ClientConfig:
    if deployment.client is None:
        raise ConfigError(f"{path}: expected a [client] section in config.toml, found none")
    return deployment.client


def _require_agreement(path: Path, task: Task, summary: _Summary, lines: Sequence[_Line]) -> None:
    """What both files say is the same. Raises ConfigError."""
    last = lines[-1]
    found = {
        "rounds": (summary.rounds, len(lines)),
        "numbers of rounds": (list(range(len(lines))), [line.round for line in lines]),
        "accepted": (summary.accepted, sum(len(line.accepted) for line in lines)),
        "rejected": (summary.rejected, sum(len(line.rejected) for line in lines)),
        "missing": (summary.missing, sum(len(line.missing) for line in lines)),
        "epsilon_one_server": (summary.epsilon_one_server, last.epsilon_one_server),
        "epsilon_clients_only": (summary.epsilon_clients_only, last.epsilon_clients_only),
        "delta": (summary.delta, task.delta),
    }
    for name, (expected, got) in found.items():
        if expected != got:
            what = f"{expected!r:.60} of summary.json" if name != "numbers of rounds" else "0, 1, 2, ..."
            raise ConfigError(f"{path}: {name}: expected {what}, found {got!r:.60}: this is no finished run's folder")
    if summary.epsilon_client is None and Level.CLIENT in task_privacy(task).every_round:
        raise ConfigError(f"{path}: epsilon_client: expected a value in summary.json, found none")
    if not lines[-1].round < task.rounds:
        raise ConfigError(f"{path}: rounds: expected at most {task.rounds}, found {len(lines)}")


def _training(summary: _Summary, lines: Sequence[_Line]) -> Trained:
    rounds = tuple(
        Round(
            n_done=line.round + 1,
            n_accepted=len(line.accepted),
            n_rejected=len(line.rejected),
            n_missing=len(line.missing),
            seconds=line.seconds_total,
            accuracy=line.accuracy,
            attack_success=None,
        )
        for line in lines
    )
    return Trained(
        seed=None,
        rounds=rounds,
        ended=summary.ended,
        accuracy=summary.accuracy,
        attack_success=None,
        rejected_clients=tuple(summary.rejected_clients),
    )


def _statements(task: Task, summary: _Summary, lines: Sequence[_Line]) -> tuple[Statement, ...]:
    """Both views of what the algorithm protects, and a whole client where there is an account of it."""
    spent = {View.ONE_SERVER: summary.epsilon_one_server, View.CLIENTS_ONLY: summary.epsilon_clients_only}
    by_round = {
        View.ONE_SERVER: tuple((line.round + 1, line.epsilon_one_server) for line in lines),
        View.CLIENTS_ONLY: tuple((line.round + 1, line.epsilon_clients_only) for line in lines),
    }
    return deployed_statements(task, spent, summary.epsilon_client, by_round)


def deployed_statements(
    task: Task,
    spent: Mapping[View, float],
    epsilon_client: float | None,
    by_round: Mapping[View, tuple[tuple[int, float], ...]] | None = None,
) -> tuple[Statement, ...]:
    """What the epsilons of a task's ledger mean. epsilon_client: of a whole client, where there is an account of it."""
    privacy = task_privacy(task)
    statements = [
        Statement(
            unit=privacy.unit,
            against=AGAINST[view],
            epsilon=None if privacy.events[view] is None else spent[view],
            delta=task.delta,
            note=privacy.rests_on[view],
            by_round=() if by_round is None or privacy.events[view] is None else by_round[view],
        )
        for view in View
    ]
    if epsilon_client is not None and privacy.unit is Unit.RECORD:
        against, note = AGAINST[View.CLIENTS_ONLY], privacy.rests_on[View.CLIENTS_ONLY]
        statements.append(
            Statement(unit=Unit.CLIENT, against=against, epsilon=epsilon_client, delta=task.delta, note=note)
        )
    return tuple(statements)


def _cost(summary: _Summary, lines: Sequence[_Line]) -> Cost:
    n = len(lines)
    phases = dict.fromkeys((*_PHASES, *(name for line in lines for name in line.seconds)))
    return Cost(
        bytes_by_link={link: sum(line.bytes.get(link, 0) for line in lines) / n for link in _LINKS},
        seconds_by_phase={
            phase: sum(line.seconds.get(phase, 0.0) for line in lines) / n
            for phase in phases
            if any(phase in line.seconds for line in lines)
        },
        bytes_from_clients=summary.bytes_client_up,
        bytes_between_servers=summary.bytes_server_link,
        seconds_total=summary.seconds_total,
        n_processes=summary.processes,
    )
