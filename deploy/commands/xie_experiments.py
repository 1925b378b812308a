"""`precad experiment` of Xie et al.'s paper: its tables and figures, repeated."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from deploy.commands.common import Device, ImagesName, Json, RayAddress, Threads, WorkersNumber, exit_codes, people
from deploy.commands.experiments import ExperimentFolder, PaperImages, train

xie_app = typer.Typer()
"""Commands of `precad experiment`, which takes them in."""

CertifiedQuick = Annotated[bool, typer.Option("--quick", help="Five trainings of each sigma: a few minutes.")]
CertifiedSeeds = Annotated[
    int | None, typer.Option(help="Trainings of each sigma; 5 with --quick, else 100; the paper has 1000.", min=1)
]
CertifiedRounds = Annotated[int | None, typer.Option(help="In place of the paper's 3.", min=1)]


class AttackLevel(StrEnum):
    """Whose guarantee an attack is held against."""

    USER = "user"
    INSTANCE = "instance"


@xie_app.command("xie-tables")
def experiment_xie_tables(as_json: Json = False) -> None:
    """The epsilons that Xie and others print, beside their reproduction and what is proved."""
    with exit_codes():
        from deploy.experiments import xie_tables

        report = xie_tables.xie_tables()
        if as_json:
            sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
        else:
            xie_tables.print_xie_tables(people, report)


@xie_app.command("userdp-certified")
def experiment_userdp_certified(
    quick: CertifiedQuick = False,
    seeds: CertifiedSeeds = None,
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Instead of 1, 1.8 and 2.3; repeat for several.")
    ] = None,
    rounds: CertifiedRounds = None,
    clipping: Annotated[
        str, typer.Option(help="flat, per-layer or private-quantile; other ways than flat are Figure 2.")
    ] = "flat",
    dirichlet_alpha: Annotated[
        float | None, typer.Option(help="Deal records by a Dirichlet distribution, not i.i.d.: Figure 3 has 1 and 0.5.")
    ] = None,
    dataset: PaperImages = ImagesName.MNIST,
    device: Device = "auto",
    threads: Threads = None,
    workers: WorkersNumber = 1,
    ray: RayAddress = None,
    output: ExperimentFolder = None,
    as_json: Json = False,
) -> None:
    """Xie et al.'s Table 4 and Figures 1 to 3: clean and certified accuracy of UserDP-FedAvg on the digits 0 and 1."""
    with exit_codes():
        from deploy.experiments import certified_accuracy
        from deploy.experiments import userdp_certified as module

        experiment = module.Experiment(
            sigmas=tuple(dict.fromkeys(sigmas or module.SIGMAS)),
            seeds=seeds or (module.QUICK_SEEDS if quick else module.SEEDS),
            rounds=rounds or module.ROUNDS,
            dataset=dataset.value,
            device=device,
            clipping=clipping,
            dirichlet_alpha=dirichlet_alpha,
        )
        train(
            certified_accuracy,
            experiment,
            "userdp-certified",
            output,
            threads=threads,
            workers=(workers, ray),
            as_json=as_json,
        )


@xie_app.command("insdp-certified")
def experiment_insdp_certified(
    quick: CertifiedQuick = False,
    seeds: CertifiedSeeds = None,
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Instead of 3, 5 and 10; repeat for several.")
    ] = None,
    rounds: CertifiedRounds = None,
    dataset: PaperImages = ImagesName.MNIST,
    device: Device = "auto",
    threads: Threads = None,
    workers: WorkersNumber = 1,
    ray: RayAddress = None,
    output: ExperimentFolder = None,
    as_json: Json = False,
) -> None:
    """Xie et al.'s Table 7 and Figures 5a, 8c: InsDP-FedAvg's accuracy, certified against poisoned records."""
    with exit_codes():
        from deploy.experiments import certified_accuracy
        from deploy.experiments import insdp_certified as module

        experiment = module.Experiment(
            sigmas=tuple(dict.fromkeys(sigmas or module.SIGMAS)),
            seeds=seeds or (module.QUICK_SEEDS if quick else module.SEEDS),
            rounds=rounds or module.ROUNDS,
            dataset=dataset.value,
            device=device,
        )
        train(
            certified_accuracy,
            experiment,
            "insdp-certified",
            output,
            threads=threads,
            workers=(workers, ray),
            as_json=as_json,
        )


@xie_app.command("xie-attack-cost")
def experiment_xie_attack_cost(
    level: Annotated[AttackLevel, typer.Option(help="Clients that are attackers, or poisoned records of one.")],
    quick: Annotated[bool, typer.Option("--quick", help="Two attacks, one k, few trainings: minutes.")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Trainings of each attack; 2 with --quick, else 10; the paper has 100.", min=1)
    ] = None,
    clean_seeds: Annotated[
        int | None, typer.Option(help="Trainings without attackers; 4 with --quick, else 40.", min=1)
    ] = None,
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Instead of 2.5, or 10 for records; repeat for several.")
    ] = None,
    attackers: Annotated[
        list[int] | None, typer.Option("--attackers", help="k, at most 20; instead of the level's; repeat for several.")
    ] = None,
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", help="Such as label-flip; the level's unless given.")
    ] = None,
    cost_bound: Annotated[
        float | None, typer.Option(help="Cost by cross-entropy, cut off here (the paper: 0.5), not by share of misses.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="In place of the paper's 5, or 4 for records.", min=1)] = None,
    dataset: PaperImages = ImagesName.MNIST,
    device: Device = "auto",
    threads: Threads = None,
    workers: WorkersNumber = 1,
    ray: RayAddress = None,
    output: ExperimentFolder = None,
    as_json: Json = False,
) -> None:
    """Xie et al.'s Figures 4, 5b-e, 7 and 10: what attacks cost, certified and measured, on MNIST."""
    with exit_codes():
        from deploy.experiments import xie_attack_cost as module

        experiment = module.Experiment(
            level=level.value,
            sigmas=tuple(dict.fromkeys(sigmas or ())),
            attackers=tuple(dict.fromkeys(attackers or (module.QUICK_ATTACKERS if quick else ()))),
            attacks=tuple(dict.fromkeys(attacks or (module.QUICK_ATTACKS if quick else ()))),
            rounds=rounds,
            seeds=seeds or (module.QUICK_SEEDS if quick else module.SEEDS),
            clean_seeds=clean_seeds or (module.QUICK_CLEAN_SEEDS if quick else module.CLEAN_SEEDS),
            cost_bound=cost_bound,
            dataset=dataset.value,
            device=device,
        )
        name = f"xie-attack-cost-{level.value}"
        train(module, experiment, name, output, threads=threads, workers=(workers, ray), as_json=as_json)
