"""`precad experiment`: what the papers report, repeated."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.common import Device, ImagesName, Json, Threads, exit_codes, people

experiment_app = typer.Typer(help="Repeat what the papers report.", no_args_is_help=True)


@experiment_app.command("xie-tables")
def experiment_xie_tables(as_json: Json = False) -> None:
    """Every epsilon that Xie et al. print, beside its reproduction and what is proved."""
    with exit_codes():
        from deploy.experiments import xie_tables

        report = xie_tables.xie_tables()
        if as_json:
            sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
        else:
            xie_tables.print_xie_tables(people, report)


@experiment_app.command("tightness")
def experiment_tightness(
    quick: Annotated[bool, typer.Option("--quick", help="Simulate the attack for the first setting only.")] = False,
    as_json: Json = False,
) -> None:
    """Attackers certified by every method, and the simulated attack that no certificate may be beaten by."""
    with exit_codes():
        from deploy.experiments import tightness

        report = tightness.tightness(quick=quick)
        if as_json:
            sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
        else:
            tightness.print_tightness(people, report)


@experiment_app.command("precad-mnist")
def experiment_precad_mnist(
    quick: Annotated[bool, typer.Option("--quick", help="1000 rounds and one seed: minutes on two cores.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Trainings of each sigma; 1 with --quick, else 3.", min=1)] = None,
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Instead of 1, 1.5 and 2; repeat for several.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="In place of the paper's 5000.", min=1)] = None,
    dataset: Annotated[ImagesName, typer.Option(help="mnist is the paper's.")] = ImagesName.MNIST,
    device: Device = "auto",
    threads: Threads = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Folder; one of the same runs is gone on with.")
    ] = None,
    as_json: Json = False,
) -> None:
    """PRECAD's Figure 2: privacy and accuracy by epoch, on MNIST (PRECAD_DATA)."""
    with exit_codes():
        import torch

        from deploy.experiments import precad_mnist
        from deploy.localhost import default_output

        precad_mnist.require_matplotlib()
        if threads is not None:
            torch.set_num_threads(threads)
        experiment = precad_mnist.Experiment(
            sigmas=tuple(dict.fromkeys(sigmas or precad_mnist.SIGMAS)),
            seeds=seeds or (1 if quick else 3),
            rounds=rounds or (precad_mnist.QUICK_ROUNDS if quick else precad_mnist.ROUNDS),
            dataset=dataset.value,
            device=device,
        )
        report = precad_mnist.run(experiment, output or default_output("precad-mnist"), people)
        precad_mnist.print_report(people, report)
        if as_json:
            sys.stdout.write(json.dumps(report) + "\n")
