"""`precad experiment` of Xie et al.'s paper: its tables and figures, repeated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import Json, PicturesName, exit_codes
from precad.lab.commands.experiment_runs import Folder, TrainingFlags, show, trains

xie_app = typer.Typer()
"""Commands of `precad experiment`, which takes them in."""

CertifiedQuick = Annotated[bool, typer.Option("--quick", help="Take few trainings of each sigma: minutes.")]
CertifiedSeeds = Annotated[
    int | None,
    typer.Option(help="Train so often with each sigma; with --quick 2 or 5, else 100; the paper has 1000.", min=1),
]
CertifiedRounds = Annotated[
    int | None, typer.Option(help="Train for so many rounds, in place of the paper's 3, or 1 on cifar10.", min=1)
]


class PairsName(StrEnum):
    """Data sets of which two classes are told apart."""

    DIGITS = "digits"
    MNIST = "mnist"
    FASHION_MNIST = "fashion-mnist"
    CIFAR10 = "cifar10"
    SENTIMENT140 = "sentiment140-50k"


CertifiedPictures = Annotated[PicturesName, typer.Option(help="Tell digits 0 and 1, or cifar10's airplanes and birds.")]
CertifiedPairs = Annotated[
    PairsName, typer.Option(help="Tell digits 0 and 1, cifar10's airplanes and birds, or negative and positive tweets.")
]


NumberOfClasses = Annotated[
    int, typer.Option("--classes", help="Tell 2 classes apart, or, of digits, 10 as in the preprint's appendix.")
]


class AttackLevel(StrEnum):
    """Units whose guarantee an attack is held against."""

    USER = "user"
    INSTANCE = "instance"


@dataclass(frozen=True, kw_only=True)
class _PublicStartFlags(TrainingFlags):
    """Flags of an experiment on models that may start from public data."""

    public_start: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            help="Start from this public model; on cifar10 and tweets, one is trained on other records unless it is "
            "given.",
        ),
    ] = None


@xie_app.command("xie-tables")
@exit_codes()
def experiment_xie_tables(output: Folder = None, as_json: Json = False) -> None:
    """Compare the epsilons that Xie and others print with their reproduction and what is proved."""
    from precad.lab.papers.xie import tables as xie_tables

    show(
        "xie-tables",
        xie_tables.xie_tables(),
        xie_tables.print_xie_tables,
        output=output,
        as_json=as_json,
        save=xie_tables.save,
    )


@trains(xie_app, "userdp-certified", "xie.userdp_certified", run_by="xie.certified_accuracy")
@dataclass(frozen=True, kw_only=True)
class UserDpCertifiedFlags(_PublicStartFlags):
    """Repeat Xie et al.'s Tables 4-6 and Figures 1-3: UserDP-FedAvg's accuracy on two classes, clean and certified."""

    quick: CertifiedQuick = False
    seeds: CertifiedSeeds = None
    sigmas: Annotated[
        list[float] | None,
        typer.Option(
            "--sigma", help="Take this sigma instead of 1, 1.8, 2.3; on cifar10 1.7, 3, 6; of tweets 1, 2, 3. Repeat."
        ),
    ] = None
    rounds: CertifiedRounds = None
    clippings: Annotated[
        list[str] | None,
        typer.Option(
            "--clipping",
            help="Clip flat, per-layer, private-quantile or private-quantile-per-layer; flat unless given. Repeat: "
            "Figure 2.",
        ),
    ] = None
    dirichlet_alphas: Annotated[
        list[float] | None,
        typer.Option(
            "--dirichlet-alpha",
            help="Deal records by a Dirichlet distribution; inf, as unless given, is i.i.d. Repeat: Figure 3 has inf, "
            "1 and 0.5.",
        ),
    ] = None
    n_classes: NumberOfClasses = 2
    dataset: CertifiedPairs = PairsName.MNIST


@trains(xie_app, "insdp-certified", "xie.insdp_certified", run_by="xie.certified_accuracy")
@dataclass(frozen=True, kw_only=True)
class InsDpCertifiedFlags(_PublicStartFlags):
    """Repeat Xie et al.'s Tables 7-8 and Figures 5a, 6a: InsDP-FedAvg's accuracy, certified for poisoned records."""

    quick: CertifiedQuick = False
    seeds: CertifiedSeeds = None
    sigmas: Annotated[
        list[float] | None,
        typer.Option("--sigma", help="Take this sigma instead of 3, 5, 10; on cifar10 2, 4, 8. Repeat."),
    ] = None
    rounds: CertifiedRounds = None
    dataset: CertifiedPictures = PicturesName.MNIST


@trains(xie_app, "xie-attack-cost", "xie.attack_cost")
@dataclass(frozen=True, kw_only=True)
class XieAttackCostFlags(_PublicStartFlags):
    """Repeat Xie et al.'s Figures 4, 5b-e, 6b-e, 7 and 10: what attacks cost, certified and measured."""

    level: Annotated[AttackLevel, typer.Option(help="Poison as whole clients, or as records of one.")]
    quick: Annotated[bool, typer.Option("--quick", help="Take two attacks, one k, few trainings: minutes.")] = False
    seeds: Annotated[
        int | None,
        typer.Option(help="Train so often with each attack; 2 with --quick, else 10; the paper has 100.", min=1),
    ] = None
    clean_seeds: Annotated[
        int | None, typer.Option(help="Train so often without attackers; 4 with --quick, else 40.", min=1)
    ] = None
    sigmas: Annotated[
        list[float] | None,
        typer.Option(
            "--sigma", help="Take this sigma instead of the paper's: on mnist 2.5, or 10 for records. Repeat."
        ),
    ] = None
    attackers: Annotated[
        list[int] | None,
        typer.Option("--attackers", help="Take k attackers, at most 20, instead of the level's; repeat for several."),
    ] = None
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", help="Take an attack such as label-flip; the level's unless given.")
    ] = None
    poison_shares: Annotated[
        list[float] | None,
        typer.Option(
            "--poison-share",
            help="Poison this share (alpha) of an attacking client's records, in (0, 1]; all unless given. Repeat.",
        ),
    ] = None
    cost_bound: Annotated[
        float | None,
        typer.Option(help="Cut the cost by cross-entropy off here (the paper: 0.5 on mnist), not by share."),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(help="Train for so many rounds, in place of the paper's: on mnist 5, or 4 for records.", min=1),
    ] = None
    n_classes: NumberOfClasses = 2
    dataset: CertifiedPairs = PairsName.MNIST

    def folder_name(self, command: str) -> str:
        """Return the command with its level."""
        return f"{command}-{self.level.value}"


@trains(xie_app, "xie-defences", "xie.defences")
@dataclass(frozen=True, kw_only=True)
class XieDefencesFlags(_PublicStartFlags):
    """Repeat Xie et al.'s Table 9: accuracy under attack of their certification, beside Krum and other rules."""

    quick: Annotated[bool, typer.Option("--quick", help="Take k = 10 only, few trainings: minutes.")] = False
    seeds: Annotated[
        int | None,
        typer.Option(help="Predict by the mean confidence of so many trainings; 3 with --quick, else 20.", min=1),
    ] = None
    rule_seeds: Annotated[
        int | None, typer.Option(help="Train so often with each rule; 1 with --quick, else 5.", min=1)
    ] = None
    sigma: Annotated[float | None, typer.Option(help="Take this sigma instead of 1.8, or 2.3 on cifar10.")] = None
    attackers: Annotated[
        list[int] | None,
        typer.Option("--attackers", help="Take k attackers of 200, instead of 2, 3, 5, 10; repeat for several."),
    ] = None
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", help="Take an attack such as stat-opt; all three unless given.")
    ] = None
    rules: Annotated[
        list[str] | None, typer.Option("--rule", help="Take a rule such as krum; all seven unless given.")
    ] = None
    rounds: CertifiedRounds = None
    dataset: CertifiedPictures = PicturesName.MNIST
