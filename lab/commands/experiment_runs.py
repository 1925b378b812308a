"""Share what the commands of `precad experiment` have in common: the folder of an experiment, and its run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from precad.deploy.cli.common import people

ExperimentFolder = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Folder; one of the same runs is gone on with.")
]


def train(
    module: Any,
    experiment: Any,
    name: str,
    output: Path | None,
    *,
    threads: int | None,
    workers: tuple[int, str | None],
    as_json: bool,
) -> None:
    """Runs an experiment of `precad.lab.papers` that trains, and says what came out."""
    import torch

    from precad.deploy.localhost.deployment import default_output
    from precad.lab.papers import runner
    from precad.lab.simulation.workers import Workers

    runner.require_matplotlib()
    if threads is not None:
        torch.set_num_threads(threads)
    report = module.run(experiment, output or default_output(name), people, Workers.asked_for(*workers))
    module.print_report(people, report)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
