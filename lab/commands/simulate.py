"""`precad simulate`: a whole training in this process."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import (
    AppName,
    ClientsNumber,
    Json,
    RayAddress,
    Threads,
    WorkersNumber,
    exit_codes,
    people,
    results,
    say,
    tell,
    write_json,
)


@exit_codes()
def simulate(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="Read this file, as `precad run` does; without one, train as the demo."),
    ] = None,
    app: AppName = None,
    clients: ClientsNumber = None,
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds, in place of the task's.", min=1)] = None,
    seeds: Annotated[int, typer.Option(help="Train so many times, with seeds from 0 on.", min=1)] = 1,
    threads: Threads = None,
    workers: WorkersNumber = 1,
    ray: RayAddress = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Write to this run folder; one of the same runs is continued."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train in one process: PRECAD, what it is compared with, and attacks, from seeds.

    Under [client.holder] each client's ledger pays before it begins, as for a task of the same rounds. Without room in
    every ledger nothing is trained or paid (exit code 2). Draws follow from the folder's secret
    `holder.key`.
    """
    import torch

    from precad.deploy.configuration.apps import read_local_with_app
    from precad.deploy.configuration.demo import demo_config
    from precad.deploy.errors import ConfigError, InterruptedRunError
    from precad.deploy.run_files.folder import default_output
    from precad.lab.simulation import simulate as simulation
    from precad.lab.simulation.shown import print_simulation
    from precad.lab.simulation.workers import Workers
    from precad.protos.task.target import TARGET, said

    if threads is not None:
        torch.set_num_threads(threads)
    if config is None and (app is not None or clients is not None):
        raise ConfigError("CONFIG: expected a file with a section task beside --app and --clients, found none")
    raw = demo_config() if config is None else read_local_with_app(config, app, clients)
    plan = simulation.resolve(raw, rounds=rounds)
    folder = output or default_output(f"{plan.task.name}-simulated")
    if (target := raw.get("task", {}).get(TARGET)) is not None:
        say(said(target, plan.task))
    try:
        summary = simulation.run_plan(plan, folder, range(seeds), people, Workers.asked_for(workers, ray))
    except KeyboardInterrupt:
        kept = f"the same command with --output {shlex.quote(str(folder))} goes on"
        raise InterruptedRunError(f"interrupted; {kept}") from None
    print_simulation(results, summary)
    tell(f"as a page   precad report {shlex.quote(str(folder))}")
    if as_json:
        write_json(summary, allow_nan=False)
    simulation.require_fulfilled(summary)
