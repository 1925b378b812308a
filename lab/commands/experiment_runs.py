"""Make the commands of `precad experiment`: each is a declaration of its flags, and a module of `precad.lab.papers`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from precad.deploy.cli.common import (
    Device,
    Json,
    RayAddress,
    Threads,
    WorkersNumber,
    people,
    results,
    say,
    tell,
    write_json,
)
from precad.deploy.cli.declared import declared
from precad.mpc.parameters import Mode


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Flags of every experiment that trains: they come last. An experiment declares `quick` itself, in its own words.

    A flag that is named like a field of the module's `Experiment` is its value.
    """

    first_seed: Annotated[
        int, typer.Option("--first-seed", help="Draw from this seed on: other numbers give other trainings.", min=0)
    ] = 0
    deployed: Annotated[
        bool,
        typer.Option(
            "--deployed", help="Train on two real servers and processes of clients, by `precad run`; not a simulation."
        ),
    ] = False
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="Check updates of --deployed in this mode, in place of `masked`."),
    ] = None
    device: Device = "auto"
    threads: Threads = None
    workers: WorkersNumber = 1
    ray: RayAddress = None
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Write to this folder; one of the same runs is continued."),
    ] = None
    as_json: Json = False

    def given(self) -> dict[str, Any]:
        """Return the flags as fields of the experiment are called."""
        return dict(vars(self))

    def folder_name(self, command: str) -> str:
        """Return how the folder is called where none is named."""
        return command


T = TypeVar("T", bound=TrainingFlags)


def trains(app: typer.Typer, command: str, module: str, *, run_by: str | None = None) -> Callable[[type[T]], type[T]]:
    """Return a decorator. It makes a declaration the command that trains the experiment of a module of the papers.

    run_by  the module with `run` and `print_report`, if that is another one.
    """

    def with_command(flags: type[T]) -> type[T]:
        def run(given: T) -> None:
            _train(given, command, _paper(module), _paper(run_by or module))

        app.command(command)(declared(flags)(run))
        return flags

    return with_command


def _paper(module: str) -> Any:
    return importlib.import_module(f"precad.lab.papers.{module}")


def _train(flags: TrainingFlags, command: str, module: Any, run_by: Any) -> None:
    """Run the experiment and say what came out."""
    import torch

    from precad.deploy.run_files.folder import default_output
    from precad.lab.papers import page, runner
    from precad.lab.simulation.workers import Workers

    given = flags.given()
    experiment = runner.asked_for(module, given, quick=given["quick"])
    runner.require_matplotlib()
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    folder = flags.output or default_output(flags.folder_name(command))
    report = run_by.run(experiment, folder, people, Workers.asked_for(flags.workers, flags.ray))
    page.write(folder, command, report, run_by.print_report)
    run_by.print_report(results, report)
    if flags.as_json:
        write_json(report)


Folder = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="DIR", file_okay=False, help="Write the report to this folder, as JSON and as a page."
    ),
]


def show(
    command: str,
    report: dict[str, Any],
    print_report: Callable[[Console, dict[str, Any]], None],
    *,
    output: Path | None,
    as_json: bool,
    save: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Print a report that is computed, not trained, as JSON or for people. Write it and its page into a folder.

    save: draws the report's curves there. Without matplotlib there are none, and people are told.
    """
    from precad.deploy.errors import ConfigError
    from precad.deploy.files.whole import write_whole
    from precad.deploy.run_files.folder import default_output
    from precad.lab.papers import page

    folder = default_output(command) if output is None else output
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.json", (json.dumps(report, indent=2, allow_nan=False) + "\n").encode())
    if save is not None:
        try:
            save(report, folder)
        except ConfigError as error:
            say(f"no pictures: {error}")
    page.write(folder, command, report, print_report, is_computed=True)
    if as_json:
        write_json(report, allow_nan=False)
    else:
        print_report(results, report)
    tell(f"written to {folder}")
