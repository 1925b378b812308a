"""Figures of evaluations by the clients, as operators get them: beside the round whose model they are of.

They stand in the file that figures on public records stand in (`precad.servers.telemetry.quality`), since a task has
one of both. Error bars are figures of their own, `accuracy_low` and `accuracy_high`. The opened sums are in the store,
and the file is made again from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import structlog

from precad.protos.task.evaluation import has_accuracy
from precad.protos.task.evaluation_figures import figures_of
from precad.protos.task.task import Task
from precad.servers.private_files import private
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from precad.servers.telemetry.model_figures import FILE

log = structlog.get_logger(__name__)

Figures = dict[str, float]


def figures_in(task: Task, evaluated: EvaluatedRound) -> Figures:
    """Return what an evaluation says of the model, each figure with both ends of its 95 % error bar."""
    found: Figures = {}
    for name, one in figures_of(task, evaluated.noisy_sum).named(has_accuracy=has_accuracy(task.loss)).items():
        found |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
    return found


def restored_evaluations(
    state_dir: Path, task: Task, committed: Sequence[CommittedRound], evaluated: Sequence[EvaluatedRound]
) -> dict[int, Figures]:
    """Return the figures of all evaluations by the round that made the model, and write the file anew where it has
    others.

    A file that cannot be written costs no round: a line of the log says so.
    """
    made_by = {round.number + 1: round for round in committed}
    found = {made_by[one.number].number: figures_in(task, one) for one in evaluated if one.number in made_by}
    digests = {round.number: round.model_digest.hex() for round in committed}
    lines = "".join(_line(number, digests[number], figures) for number, figures in found.items())
    path = state_dir / FILE
    try:
        if lines and (not path.exists() or path.read_text() != lines):
            with open(path, "w", opener=private) as file:
                file.write(lines)
    except OSError as error:
        log.warning("quality.not_written", round=max(found), reason=error.strerror)
    return found


def write_figures(path: Path, made_by: CommittedRound, figures: Figures) -> None:
    """Append the figures of the model that a round made. A figure is worth no round: a failure is a line of the log."""
    try:
        with open(path, "a", opener=private) as file:
            file.write(_line(made_by.number, made_by.model_digest.hex(), figures))
    except OSError as error:
        log.warning("quality.not_written", round=made_by.number, reason=error.strerror)


def _line(number: int, digest: str, figures: Figures) -> str:
    return json.dumps({"round": number, "model_digest": digest, "figures": figures}) + "\n"
