"""`precad experiment`: what the papers report, repeated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from precad.deploy.cli.common import ImagesName, Json, PicturesName, exit_codes
from precad.lab.commands.experiment_runs import Folder, TrainingFlags, show, trains
from precad.lab.commands.xie_experiments import xie_app

experiment_app = typer.Typer(help="Repeat what the papers report.", no_args_is_help=True)
experiment_app.add_typer(xie_app)


@experiment_app.command("tightness")
@exit_codes()
def experiment_tightness(
    quick: Annotated[bool, typer.Option("--quick", help="Simulate the attack for the first setting only.")] = False,
    output: Folder = None,
    as_json: Json = False,
) -> None:
    """Certify attackers by every method, and simulate the attack that no certificate may be beaten by."""
    from precad.lab.papers import tightness

    show("tightness", tightness.tightness(quick=quick), tightness.print_tightness, output=output, as_json=as_json)


PaperImages = Annotated[ImagesName, typer.Option(help="Train on this data set; mnist is the paper's.")]
PaperModel = Annotated[
    str | None,
    typer.Option(
        help="Train this model in place of cnn-standardised and cifar; cnn-rgb is four times as fast as cifar."
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Train each case so often; 1 with --quick, else 3.", min=1)]
Rounds = Annotated[int | None, typer.Option(help="Train for so many rounds, in place of the paper's 5000.", min=1)]
Sigma = Annotated[float, typer.Option(help="Set the noise multiplier; the paper has 1, 1.5 and 2.")]
ExperimentQuick = Annotated[bool, typer.Option("--quick", help="Take fewer rounds and one seed: minutes on two cores.")]


@trains(experiment_app, "precad-mnist", "precad.mnist")
@dataclass(frozen=True, kw_only=True)
class PrecadMnistFlags(TrainingFlags):
    """Repeat PRECAD's Figure 2: privacy and accuracy by epoch, on MNIST (PRECAD_DATA)."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Take this sigma instead of 1, 1.5 and 2; repeat for several.")
    ] = None
    rounds: Rounds = None
    dataset: PaperImages = ImagesName.MNIST
    model: Annotated[str, typer.Option(help="Train this model; cnn takes the same pixels as they are, in [0, 1].")] = (
        "cnn-standardised"
    )


@trains(experiment_app, "precad-clients", "precad.clients")
@dataclass(frozen=True, kw_only=True)
class PrecadClientsFlags(TrainingFlags):
    """Repeat PRECAD's Figure 3: accuracy and running time by the number of clients, beside local and central DP."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    numbers: Annotated[
        list[int] | None,
        typer.Option(
            "--clients", help="Take so many clients instead of 100, 200, 500, 1000; repeat for several.", min=2
        ),
    ] = None
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Compare this one of precad, local-dp, central, non-private, precad-mpc; all unless given. Repeat.",
        ),
    ] = None
    sigma: Sigma = 1.0
    rounds: Rounds = None
    dataset: Annotated[
        PicturesName, typer.Option(help="Train on this data set; mnist and cifar10 are the paper's.")
    ] = PicturesName.MNIST
    model: PaperModel = None


@trains(experiment_app, "convex-sets", "convex_sets")
@dataclass(frozen=True, kw_only=True)
class ConvexSetsFlags(TrainingFlags):
    """Compare backdoors against one ball and against smaller convex sets, at one epsilon (PRECAD_DATA).

    Attackers project once, or optimise inside the set. C is larger than Figure 4's 20, which leaves the former nothing.
    """

    quick: ExperimentQuick = False
    seeds: Seeds = None
    attackers: Annotated[
        list[int] | None, typer.Option("--attackers", help="Take K attackers instead of 5 and 10; repeat.", min=1)
    ] = None
    sigma: Sigma = 1.0
    defences: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help="Train this one of ball, equal-layers, layers-by-size, half-space, layers-and-half-space; all unless "
            "given. Repeat.",
        ),
    ] = None
    clip: Annotated[float, typer.Option(help="Bound the whole update by this C; layers get parts of it.")] = 100.0
    rate: Annotated[float, typer.Option(help="Train with this eta.")] = 0.3
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="Start from this model, trained without attackers: they waited until then."
        ),
    ] = None
    rounds: Rounds = None
    dataset: PaperImages = ImagesName.MNIST
    model: Annotated[str, typer.Option(help="Train this model.")] = "cnn-standardised"


@trains(experiment_app, "precad-backdoor", "precad.backdoor")
@dataclass(frozen=True, kw_only=True)
class PrecadBackdoorFlags(TrainingFlags):
    """Repeat PRECAD's Figures 4 and 5: what K backdoor attackers of 100 clients do under which defence."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    attackers: Annotated[
        list[int] | None,
        typer.Option(
            "--attackers",
            help="Take K attackers instead of 5 and 10, or 1 and 3 on CIFAR-10 (5, or 3, with --quick); repeat for "
            "several.",
            min=1,
        ),
    ] = None
    defences: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help="Train this one of precad-c20, precad-c30, precad-unbounded, local-dp-c30, local-dp-unchecked-c30, "
            "local-dp-unbounded, non-private; all unless given. Repeat.",
        ),
    ] = None
    clips: Annotated[
        list[float] | None,
        typer.Option(
            "--clip", help="Train PRECAD with this C in place of the defences, for Figure 5's curve; repeat.", min=0.001
        ),
    ] = None
    undivided: Annotated[
        bool,
        typer.Option(
            "--undivided", help="Let each attacker of a round upload the whole malicious update, not its part."
        ),
    ] = False
    sigma: Sigma = 1.0
    rounds: Rounds = None
    dataset: Annotated[
        PicturesName,
        typer.Option(help="Train on this data set, with the pixel pattern; on cifar10 with the semantic backdoor."),
    ] = PicturesName.MNIST
    model: PaperModel = None

    def given(self) -> dict[str, Any]:
        """Return the flags as fields of the experiment are called."""
        return super().given() | {"divides": not self.undivided}


@trains(experiment_app, "adapters", "adapters")
@dataclass(frozen=True, kw_only=True)
class AdaptersFlags(TrainingFlags):
    """Train private adapters on Sentiment140, beside central DP-SGD, the whole model and the LSTM."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Compare this one of adapters, central-adapters, whole, lstm; all unless given. Repeat.",
        ),
    ] = None
    sigma: Annotated[float, typer.Option(help="Set the noise multiplier.")] = 1.0
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds, in place of 60.", min=1)] = None
    peers_python: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="Train centrally by Opacus too, with this interpreter (make peers)."),
    ] = None


@trains(experiment_app, "correlated-noise", "correlated_noise")
@dataclass(frozen=True, kw_only=True)
class CorrelatedNoiseFlags(TrainingFlags):
    """Train UserDP-FedAvg with noise correlated over rounds, beside independent noise at equal epsilon, on MNIST."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    epsilon: Annotated[float, typer.Option(help="Give a client this epsilon against one server.")] = 2.0
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds; 20 with --quick, else 200.", min=1)] = (
        None
    )
    dataset: Annotated[ImagesName, typer.Option(help="Train on this data set.")] = ImagesName.MNIST
    model: Annotated[str, typer.Option(help="Train this model in place of a linear one, whose rates are fixed.")] = (
        "precad.lab.papers.correlated_noise:softmax"
    )


@trains(experiment_app, "central-local-backdoor", "naseri.central_local_backdoor")
@dataclass(frozen=True, kw_only=True)
class CentralLocalBackdoorFlags(TrainingFlags):
    """Repeat Naseri et al.: central DP, local DP and weaker defences against K backdoor attackers of 1000 clients."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    attackers: Annotated[
        list[int] | None,
        typer.Option("--attackers", help="Take K attackers instead of 20 and 100; repeat for several.", min=1),
    ] = None
    budget: Annotated[float, typer.Option("--epsilon", help="Give a client of central DP this budget.")] = 2.0
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds; 40 with --quick, else 200.", min=1)] = (
        None
    )
    dataset: PaperImages = ImagesName.MNIST
    model: Annotated[str, typer.Option(help="Train this model; cnn has four times the parameters.")] = "cnn-half"


@trains(experiment_app, "word-backdoor", "naseri.next_word")
@dataclass(frozen=True, kw_only=True)
class WordBackdoorFlags(TrainingFlags):
    """Repeat Naseri et al.'s word prediction: three backdoor sentences against central DP, local DP and others."""

    quick: ExperimentQuick = False
    seeds: Seeds = None
    attackers: Annotated[
        list[int] | None,
        typer.Option("--attackers", help="Take K attackers instead of 8 and 40; repeat for several.", min=1),
    ] = None
    defences: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help="Train this one of non-private, norm-bounding, weak-dp, central-dp, local-dp, local-dp-defied; all "
            "unless given. Repeat.",
        ),
    ] = None
    budget: Annotated[float, typer.Option("--epsilon", help="Give a client of central DP this budget.")] = 2.0
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds; 20 with --quick, else 200.", min=1)] = (
        None
    )


@trains(experiment_app, "ptr-clients", "ptr.clients")
@dataclass(frozen=True, kw_only=True)
class PtrClientsFlags(TrainingFlags):
    """Train TSGD + PTR of the PTR paper's Table 1 by two servers, with 10,000 clients of one record of MNIST each."""

    quick: Annotated[bool, typer.Option("--quick", help="Take 60 clients and 10 rounds.")] = False
    seeds: Annotated[int | None, typer.Option(help="Train each case so often; once unless given.", min=1)] = None
    corruptions: Annotated[
        list[str] | None,
        typer.Option("--corruption", help="Take a corruption such as label-0.2; label-0.1 unless given. Repeat."),
    ] = None
    epsilon: Annotated[
        float, typer.Option(help="Train as long as one server that hides its batches could at this epsilon.")
    ] = 5.0


@trains(experiment_app, "ptr-mnist", "ptr.mnist")
@dataclass(frozen=True, kw_only=True)
class PtrMnistFlags(TrainingFlags):
    """Repeat the PTR paper's Table 1: TSGD + PTR and TSGD + Gaussian on corrupted pictures, at equal proved epsilon."""

    quick: Annotated[bool, typer.Option("--quick", help="Take two settings, one seed, less epsilon: minutes.")] = False
    seeds: Seeds = None
    corruptions: Annotated[
        list[str] | None,
        typer.Option(
            "--corruption", help="Take a corruption such as label-0.1 or sign-flip-0.1; Table 1's seven unless given."
        ),
    ] = None
    epsilons: Annotated[
        list[float] | None,
        typer.Option("--epsilon", help="Take this epsilon instead of 3 and 5, or 7 and 10 on cifar10. Repeat."),
    ] = None
    dataset: Annotated[
        PicturesName, typer.Option(help="Train on this data set; mnist and cifar10 are the paper's.")
    ] = PicturesName.MNIST
    model: Annotated[
        str | None,
        typer.Option(
            help="Train this model in place of cnn and cifar; cnn-half and cnn-rgb, those of --quick, are faster."
        ),
    ] = None
    with_dpsgd: Annotated[bool, typer.Option("--dpsgd", help="Add DP-SGD, which trims nothing, as in Table 4.")] = False


@experiment_app.command("ptr-accounting")
@exit_codes()
def experiment_ptr_accounting(output: Folder = None, as_json: Json = False) -> None:
    """Count the rounds of each mechanism of the PTR paper's Tables 1 to 4 at their epsilons, proved and by Renyi."""
    from precad.lab.papers.ptr import accounting as ptr_accounting

    show(
        "ptr-accounting",
        ptr_accounting.ptr_accounting(),
        ptr_accounting.print_ptr_accounting,
        output=output,
        as_json=as_json,
    )


@experiment_app.command("precad-noise")
@exit_codes()
def experiment_precad_noise(
    first_seed: Annotated[int, typer.Option("--first-seed", help="Draw from this seed.", min=0)] = 0,
    output: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure the noise column of PRECAD's Table 1 on one round of each algorithm."""
    from precad.lab.papers.precad import noise as precad_noise

    show(
        "precad-noise",
        precad_noise.precad_noise(seed=first_seed),
        precad_noise.print_report,
        output=output,
        as_json=as_json,
    )


@experiment_app.command("ptr-figures")
@exit_codes()
def experiment_ptr_figures(output: Folder = None, as_json: Json = False) -> None:
    """Compute the curves of the PTR paper's Figures 1 to 5, and test what the paper says of them."""
    from precad.lab.papers.ptr import figures as ptr_figures

    show(
        "ptr-figures",
        ptr_figures.ptr_figures(),
        ptr_figures.print_ptr_figures,
        output=output,
        as_json=as_json,
        save=ptr_figures.save,
    )


@experiment_app.command("precad-theorem-2")
@exit_codes()
def experiment_precad_theorem_2(
    loss: Annotated[float, typer.Option(help="Take this expected loss L without attackers.")] = 0.1,
    largest_loss: Annotated[float, typer.Option("--largest-loss", help="Take losses in [0, B].")] = 1.0,
    attackers: Annotated[
        list[int] | None, typer.Option("--attackers", help="Take K attackers instead of 1, 3, 5, 10. Repeat.", min=0)
    ] = None,
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Take this sigma instead of 1, 1.5 and 2. Repeat.")
    ] = None,
    client_clips: Annotated[
        list[float] | None, typer.Option("--client-clip", help="Take this C instead of 20 and 30. Repeat.")
    ] = None,
    record_clip: Annotated[float, typer.Option(help="Take this R.")] = 2.0,
    client_rate: Annotated[float, typer.Option(help="Draw each client for a round at this rate q.")] = 0.1,
    rounds: Annotated[int, typer.Option(help="Count T rounds.", min=1)] = 5000,
    output: Folder = None,
    as_json: Json = False,
) -> None:
    """Compute PRECAD's Theorem 2 as printed: the loss that K malicious clients can lead to."""
    from precad.lab.papers.precad import theorem_2

    question = theorem_2.Question(
        loss=loss,
        largest_loss=largest_loss,
        attackers=attackers or theorem_2.Question.attackers,
        sigmas=sigmas or theorem_2.Question.sigmas,
        client_clips=client_clips or theorem_2.Question.client_clips,
        record_clip=record_clip,
        client_rate=client_rate,
        rounds=rounds,
    )
    show(
        "precad-theorem-2",
        theorem_2.theorem_2(question),
        theorem_2.print_theorem_2,
        output=output,
        as_json=as_json,
        save=theorem_2.save,
    )


@experiment_app.command("precad-theorem-1")
@exit_codes()
def experiment_precad_theorem_1(output: Folder = None, as_json: Json = False) -> None:
    """Compute PRECAD's Figure 2, left: epsilon by epoch as Theorem 1 prints it, beside what is proved."""
    from precad.lab.papers.precad import theorem_1

    show(
        "precad-theorem-1",
        theorem_1.theorem_1(),
        theorem_1.print_theorem_1,
        output=output,
        as_json=as_json,
        save=theorem_1.save,
    )
