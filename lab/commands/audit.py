"""`precad audit privacy`: what an attack on the running system shows, beside each epsilon that is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import Json, Threads, exit_codes, people, write_json
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import AuditFailedError, ConfigError


def privacy(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="Audit this file's task, as `precad simulate` runs it; else the demo's."),
    ] = None,
    canaries: Annotated[
        int | None, typer.Option(help="Hold so many canaries; else enough for 100000 observations.", min=1)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds, in place of the task's.", min=1)] = None,
    confidence: Annotated[float, typer.Option(help="Hold each seat's figures with this probability.")] = 0.95,
    seed: Annotated[
        int | None, typer.Option(help="Repeat the audit of this seed; else draw from the operating system.", min=0)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE.json",
            help="Write the report here; a run folder's audit.json is shown by precad report.",
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Attack a training with canaries: lower figures for each epsilon.

    Audit clients join the task, whose records are known directions that pass the real sampler, clip, projection,
    encoding, check, noise and opening. Exit code 1 says that a printed epsilon, or what it rests on, was contradicted.
    """
    with exit_codes():
        import torch

        from precad.deploy.configuration.demo import demo_config
        from precad.lab.auditing.audit import audit
        from precad.lab.auditing.shown import faults_of, print_audit
        from precad.lab.simulation.progress import Trainings
        from precad.lab.simulation.simulate import resolve

        if threads is not None:
            torch.set_num_threads(threads)
        plan = resolve(demo_config() if config is None else configuration.read_local(config), rounds=rounds)
        with Trainings(people, 1) as trainings, trainings.one("audit", plan.task.rounds) as advance:
            report = audit(plan, canaries=canaries, confidence=confidence, seed=seed, on_round=advance)
        print_audit(people, report)
        if output is not None:
            _write(output, report)
        if as_json:
            write_json(report, allow_nan=False)
        if faults := faults_of(report):
            raise AuditFailedError("\n".join(faults))


def _write(path: Path, report: dict[str, object]) -> None:
    """Write the report as one JSON object. Raises ConfigError."""
    import json

    from precad.deploy.files.whole import write_whole

    try:
        write_whole(path, (json.dumps(report, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"--output: expected a file to write to, found {path}: {error.strerror}") from None
