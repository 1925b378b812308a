"""Configure a client by a foreign trainer, and say what its task proves: bounds of whole clients, and why no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from precad.clients.config import NVFLARE, SCRIPT, ClientConfig
from precad.deploy.configuration.sections import Deployment, parse_section, section
from precad.deploy.errors import ConfigError
from precad.deploy.shown.figures import three_digits
from precad.dp.conditions import AGAINST_BRIEFLY
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task

NO_RECORD_FIGURE: Final = (
    "the trainer is foreign code: nothing holds it to clipping single records, so no figure is about one; C bounds "
    "whole clients, whatever it does"
)


def with_trainer(deployment: Deployment, base: Path, kind: str, named: str | None, python: Path | None) -> Deployment:
    """Return a deployment whose client trains by foreign code, if a flag names any. Raises ConfigError.

    - kind: the flag and the trainer's kind: a Flower ClientApp, `module:app`, or a script of NVFLARE's
    - base: the configuration's folder
    - python: the interpreter that holds the kind's library
    """
    if named is None:
        if python is not None:
            raise ConfigError(f"--{kind}-python: expected --{kind} beside it, found none")
        return deployment
    own = section(deployment.client, "client")
    trainer = f"{kind}:{named}"
    if own.trainer not in (None, trainer):
        raise ConfigError(f"client.trainer: expected {trainer!r}, of --{kind}, found {own.trainer!r}")
    if kind == NVFLARE and not named.endswith(SCRIPT):
        raise ConfigError(f"--{kind}: expected the file of a script, *{SCRIPT}, found {named!r}")
    fields: dict[str, Any] = {**own.model_dump(exclude_unset=True), "trainer": trainer}
    if python is not None:
        fields["trainer_python"] = python.absolute()
    return deployment.model_copy(update={"client": parse_section(ClientConfig, fields, "client", base=base)})


def promised_to_clients(task: Task) -> Iterator[str]:
    """Yield what a task of whole clients proves at its end, line by line, and why no record has a figure."""
    cost, privacy = task_cost(task), task_privacy(task)
    for view, against in AGAINST_BRIEFLY.items():
        planned = three_digits(privacy.epsilon(view, task.rounds_of_a_client, task.delta))
        most = three_digits(cost.view_if_discarded(view))
        yield (
            f"one whole client, against {against}: epsilon {planned} at delta = {task.delta:g} after {task.rounds} "
            f"rounds; {most} if draws may be discarded{f'; rests on: {said}' if (said := privacy.said[view]) else ''}"
        )
    yield f"one record: no figure; {NO_RECORD_FIGURE}"


def counted(state_dir: Path) -> dict[str, int]:
    """Return how many trainings of all clients in a folder ended well, failed, and returned more than the bound."""
    from prometheus_client.parser import text_string_to_metric_families  # of a run with foreign trainers alone

    found = dict.fromkeys(("trained", "clipped", "failed"), 0)
    for file in state_dir.glob("*.prom"):
        for family in text_string_to_metric_families(file.read_text()):
            for sample in () if "evaluations" in family.name else family.samples:
                found[sample.labels.get("outcome", "clipped")] += int(sample.value)
    return found
