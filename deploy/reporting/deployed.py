"""The folder of `precad demo` and `precad run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
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
from protos.task import Task

_PHASES: Final = ("select", "collect", "lock", "validate", "noise", "charge", "open", "commit")
_LINKS: Final = ("clients_to_a", "clients_to_b", "a_to_b", "b_to_a", "dealer_to_a", "dealer_to_b")
_OWN_NOISE: Final = "whether or not the corrupted server adds its own noise"
_TWO_HONEST: Final = "if both servers follow the protocol"


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
    epsilon_client: Epsilon | Literal["inf"]
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
        algorithm="precad",
        task=deployment.task,
        client=_client(deployment, path),
        settings=None,
        trainings=(_training(summary, lines),),
        statements=_statements(summary, lines),
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
    if not lines[-1].round < task.rounds:
        raise ConfigError(f"{path}: rounds: expected at most {task.rounds}, found {len(lines)}")


def _training(summary: _Summary, lines: Sequence[_Line]) -> Trained:
    rounds = tuple(
        Round(
            number=line.round + 1,
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


def _statements(summary: _Summary, lines: Sequence[_Line]) -> tuple[Statement, ...]:
    """Both views of a record, and a whole client."""
    one_server, clients_only, client = deployed_statements(
        summary.epsilon_one_server,
        summary.epsilon_clients_only,
        math.inf if summary.epsilon_client == "inf" else summary.epsilon_client,
        summary.delta,
    )
    return (
        replace(one_server, by_round=tuple((line.round + 1, line.epsilon_one_server) for line in lines)),
        replace(clients_only, by_round=tuple((line.round + 1, line.epsilon_clients_only) for line in lines)),
        client,
    )


def deployed_statements(
    one_server: float, clients_only: float, client: float, delta: float
) -> tuple[Statement, Statement, Statement]:
    """What a deployment's epsilons mean: of a record in both views, of a whole client against clients."""
    return (
        Statement(unit=Unit.RECORD, against=AGAINST[View.ONE_SERVER], epsilon=one_server, delta=delta, note=_OWN_NOISE),
        Statement(
            unit=Unit.RECORD, against=AGAINST[View.CLIENTS_ONLY], epsilon=clients_only, delta=delta, note=_TWO_HONEST
        ),
        Statement(unit=Unit.CLIENT, against=AGAINST[View.CLIENTS_ONLY], epsilon=client, delta=delta, note=_TWO_HONEST),
    )


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
