"""Write a run of Weights & Biases, to its service or, offline, to files that `wandb sync` sends later.

The run has the numbers and no more. The library would add this machine's name, user, command line, packages, code and
load. It would also report its errors to its makers. All of that is turned off. The service's address is what `--to`
names, and `WANDB_BASE_URL` and `WANDB_MODE` change nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

os.environ["WANDB_ERROR_REPORTING"] = "false"
import wandb

from precad.deploy.tracking.journal import Journal
from precad.deploy.tracking.points import Point
from precad.deploy.tracking.scalars import Named

_ROUND: Final = "round"


class WandbWriter:
    """One run, with the round as the axis: a figure that is measured late still belongs to its round.

    The library's process gets a row before the journal has it. A machine that crashes may lose the last ones.
    """

    def __init__(
        self, folder: Path, training: str, *, base_url: str, entity: str | None, project: str, is_offline: bool
    ) -> None:
        """folder: gets the library's files and the journal. Raises what the library raises; ConfigError."""
        name = hashlib.sha256(f"{base_url} {entity} {project} {training}".encode()).hexdigest()[:16]
        self._journal = Journal(folder / f"wandb-{name}.jsonl")
        self._run = wandb.init(
            entity=entity,
            project=project,
            id=name,
            name=training,
            dir=str(folder),
            resume="allow",
            settings=_settings(base_url, is_offline=is_offline),
        )
        self._labels: dict[str, str] = {}
        self._run.define_metric(_ROUND)
        self._run.define_metric("*", step_metric=_ROUND)

    def written(self) -> set[Named]:
        """Return what the journal has."""
        return self._journal.read()

    def write(self, points: Sequence[Point], labels: Mapping[str, str]) -> None:
        """Log a row per round. Labels are in the run's configuration."""
        if self._labels != labels:
            self._labels = dict(labels)
            self._run.config.update({"labels": self._labels}, allow_val_change=True)
        for number, of_round in groupby(points, key=lambda point: point.round):
            self._run.log({_ROUND: number, **{point.name: point.value for point in of_round}})
        self._journal.append((point.name, point.round) for point in points)

    def close(self) -> None:
        """Wait until everything has left, or is in the file, which the library's own process writes."""
        self._run.finish()
        wandb.teardown()
        self._journal.close()


def _settings(base_url: str, *, is_offline: bool) -> wandb.Settings:
    return wandb.Settings(
        mode="offline" if is_offline else "online",
        base_url=base_url,
        host="precad",
        console="off",
        silent=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
