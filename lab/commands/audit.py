"""`precad audit privacy`: what an attack on the running system shows, beside each epsilon that is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from precad.deploy.cli.common import Json, Threads, exit_codes, people, results, write_json
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import AuditFailedError, ConfigError

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR", help="Audit the deployment of CONFIG by this state_dir of an aggregator; give one or both."
    ),
]
Clients = Annotated[
    list[Path] | None, typer.Option(metavar="DIR", help="Read this state_dir of audit clients, beside --server.")
]
Canaries = Annotated[
    int | None, typer.Option(help="Hold so many canaries, 64 to 20000; else enough for 100000 observations.")
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE.json",
        help="Write the report here; audit.json in a state_dir is shown by that server's dashboard.",
    ),
]


def privacy(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="Audit this file's task, as `precad simulate` runs it; else the demo's."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Audit this run of precad run, whose task has audit clients."),
    ] = None,
    server: Folders = None,
    clients: Clients = None,
    canaries: Canaries = None,
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds, in place of the task's.", min=1)] = None,
    confidence: Annotated[
        float, typer.Option(help="Hold all that accuses together, and each figure, with this probability.")
    ] = 0.95,
    seed: Annotated[
        int | None, typer.Option(help="Repeat the audit of this seed; else draw from the operating system.", min=0)
    ] = None,
    output: Report = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Attack a training with canaries: lower figures for each epsilon.

    Audit clients join the task, whose records are known directions that pass the real sampler, clip, projection,
    encoding, check, noise and opening. With --run or --server it is a training that has been run, else a simulation, in
    which one more audit client has real records. A deployment has those of task.real_audit_clients.
    Exit code 1 says that a printed epsilon, or what it rests on, was contradicted. At 95 % that happens to a sound
    system of honest clients in at most one audit of twenty, all seats and ways together. Malicious ones,
    which upload at canaries, can frame servers or cover them. Figures of guesses in one run hold
    each by itself.
    """
    with exit_codes():
        from precad.lab.auditing.deployment import require_output, write_report
        from precad.lab.auditing.report import faults_of, print_audit

        if output is not None:
            require_output(output)
        if run is not None or server or clients:
            _refuse_beside(canaries=canaries, rounds=rounds, seed=seed, threads=threads)
            report = _of_deployment(config, run, server or [], clients or [], confidence)
        else:
            report = _of_simulation(config, canaries, rounds, confidence, seed, threads)
        print_audit(results, report)
        if output is not None:
            write_report(output, report)
        if as_json:
            write_json(report, allow_nan=False)
        if faults := faults_of(report):
            raise AuditFailedError("\n".join(faults))


def _refuse_beside(**of_simulations: object) -> None:
    """Raise ConfigError for an option of simulations."""
    for name, value in of_simulations.items():
        if value is not None:
            raise ConfigError(f"--{name}: expected none beside --run or --server, found {value}")


def _of_deployment(
    config: Path | None, run: Path | None, servers: list[Path], clients: list[Path], confidence: float
) -> dict[str, Any]:
    """Return the report of a training that has been run. Raises ConfigError, and as `audit_run`."""
    from precad.lab.auditing.deployment import audit_deployment, audit_run

    if run is not None:
        if config is not None or servers or clients:
            raise ConfigError("--run: expected neither CONFIG nor --server nor --clients beside it, found one")
        return audit_run(run, confidence)
    if config is None:
        raise ConfigError("CONFIG: expected a file with the task beside --server, found none")
    return audit_deployment(configuration.load(config).task, servers, clients, confidence)


def _of_simulation(
    config: Path | None,
    canaries: int | None,
    rounds: int | None,
    confidence: float,
    seed: int | None,
    threads: int | None,
) -> dict[str, Any]:
    """Return the report of a training in this process. Raises as `audit`."""
    import torch

    from precad.deploy.configuration.demo import demo_config
    from precad.lab.auditing.audit import audit
    from precad.lab.simulation.progress import Trainings
    from precad.lab.simulation.simulate import resolve

    if threads is not None:
        torch.set_num_threads(threads)
    plan = resolve(demo_config() if config is None else configuration.read_local(config), rounds=rounds)
    with Trainings(people, 1) as trainings, trainings.one("audit", plan.task.rounds) as advance:
        return audit(plan, canaries=canaries, confidence=confidence, seed=seed, on_round=advance)
