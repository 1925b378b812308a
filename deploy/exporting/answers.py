"""`precad answer`: what a query that is over found, from one server's folder, whose log and ledger verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import ConfigError
from precad.deploy.exporting.finished import ROLES, read_finished
from precad.deploy.run_files.answers import answer_of
from precad.deploy.shown.figures import plain
from precad.dp.accountants.pld import Conduct, View
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role


def answer_at(config: Path, letter: str | None, level: float) -> dict[str, Any]:
    """Return the answer at the server that a file configures. letter: a or b, where it configures both.

    Raises ConfigError, and what `read_finished` raises.
    """
    deployment = configuration.load(config)
    letter = _letter(deployment, config) if letter is None else letter
    section = deployment.aggregator.a if letter == "a" else deployment.aggregator.b
    own = configuration.section(section, f"aggregator.{letter}")
    return finished_answer(own.state_dir, deployment.task, ROLES[letter], level)


def _letter(deployment: Deployment, config: Path) -> str:
    found = [name for name in "ab" if getattr(deployment.aggregator, name) is not None]
    if len(found) != 1:
        raise ConfigError(f"--role: expected a or b, found {len(found)} aggregators in {config}")
    return found[0]


def finished_answer(state_dir: Path, task: Task, role: Role, level: float) -> dict[str, Any]:
    """Return the answer, with what it cost a record if draws may be discarded. Raises as `read_finished`; ConfigError
    for a training's folder."""
    finished = read_finished(state_dir, task, role)
    cost = finished.views[Conduct.MAY_DISCARD]
    return {
        **answer_of(finished.parameters, task, level),
        "epsilon_one_server": plain(cost[View.ONE_SERVER].epsilon),
        "epsilon_clients_only": plain(cost[View.CLIENTS_ONLY].epsilon),
        "delta": task.delta,
    }
