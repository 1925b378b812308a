"""`precad experiment precad-backdoor`: PRECAD's Figures 4 and 5, what K attackers of 100 do under which defence.

MNIST has the pixel pattern, CIFAR-10 the semantic backdoor. The attackers replace the model (Sec. 3.2, Appendix E) from
the first round on, within whatever bound somebody enforces. Those of a round divide the malicious update evenly. For
each number of attackers, there is one training for each seed of

    PRECAD      C = 20, C = 30, and without any bound on a client (its form with only privacy, Sec. 7)
    local DP    C = 30, enforced after the clients' noise, of which attackers add none; C = 30 for honest clients alone;
                and without any bound
    non-private nothing is bounded

Backdoor accuracy is counted on images that are not of the target class anyway (`precad.clients.attacks`), so that a
model without a backdoor has none. The paper counts all images. Backdoor accuracy is counted only where the model's
clean accuracy exceeds `backdoors.CLEAN_ACCURACY_FLOOR`. So a model which calls every image the target class has none
either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.lab.papers import backdoors, runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

ROUNDS, QUICK_ROUNDS = 5000, 600
EVALUATE_EVERY: Final = 50
"""Rounds, on CIFAR-10, where trainings are short; an epoch elsewhere."""
N_CLIENTS: Final = 100
ATTACKERS: Final[Mapping[str, tuple[int, ...]]] = {"mnist": (5, 10), "cifar10": (1, 3)}
"""Numbers of attackers in the paper's Figure 5."""


@dataclass(frozen=True, slots=True)
class Defence:
    """An algorithm of `precad simulate`, and what it bounds a client by."""

    name: str
    words: str
    clip: float | None
    simulation: Mapping[str, Any]


DEFENCES: Final = (
    Defence("precad-c20", "PRECAD, C = 20", 20.0, {"algorithm": "precad"}),
    Defence("precad-c30", "PRECAD, C = 30", 30.0, {"algorithm": "precad"}),
    Defence("precad-unbounded", "PRECAD, no C", None, {"validation": False, "client_clipping": False}),
    Defence("local-dp-c30", "local DP, C = 30", 30.0, {"algorithm": "local-dp"}),
    Defence(
        "local-dp-unchecked-c30",
        "local DP, C = 30, attackers not bound",
        30.0,
        {"algorithm": "local-dp", "validation": False},
    ),
    Defence("local-dp-unbounded", "local DP, no C", None, {"algorithm": "local-dp", "client_clipping": False}),
    Defence("non-private", "non-private", None, {"algorithm": "non-private", "client_clipping": False}),
)


def precad_with(clip: float) -> Defence:
    """Return PRECAD with another C, as the table calls its own."""
    return Defence(f"precad-c{clip:g}", f"PRECAD, C = {clip:g}", clip, {"algorithm": "precad"})


GOAL_ATTACKERS: Final = 5
PRINTED_BACKDOOR: Final[Mapping[str, tuple[float, int, float]]] = {"mnist": (20.0, 5, 0.0)}
"""A point of the paper's Figure 5 that its text states: C, K and the backdoor accuracy."""
QUICK_ATTACKERS: Final[Mapping[str, tuple[int, ...]]] = {"mnist": (GOAL_ATTACKERS,), "cifar10": (3,)}
"""One K in place of two; other data sets have MNIST's, like ATTACKERS."""
PAPER: Final[Mapping[str, str]] = {
    "mnist": (
        "The paper says of MNIST: 4 attackers suffice for more than 80 % against local DP and non-private training; "
        "PRECAD with C = 20 has 0 % at K = 5 and less than 50 % at K = 10, for one point of accuracy."
    ),
    "cifar10": (
        "The paper says of CIFAR-10: one attacker suffices for more than 80 % against local DP and non-private "
        "training; PRECAD with C = 20 stays below 30 % at K = 3 and sigma = 2."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    attackers: Sequence[int] = ()
    """Empty: the paper's for the data set."""
    defences: Sequence[str] = ()
    """Names of `DEFENCES`, of those that are trained; none: all, or none of them beside `clips`."""
    clips: Sequence[float] = ()
    """Bounds C of PRECAD for Figure 5's curve, each a training of its own."""
    sigma: float = 1.0
    divides: bool = True
    """Whether the attackers of a round divide the malicious update, as in Sec. 3.2; if not, each uploads all of it."""
    rounds: int = ROUNDS
    model: str | None = None
    """In place of the paper's for the data set."""

    def __post_init__(self) -> None:
        runner.require_known("--defence", self.defences, [defence.name for defence in DEFENCES])
        runner.require_positive("--clip", *self.clips)

    @property
    def trained(self) -> tuple[Defence, ...]:
        """Return the trained defences in the order of the table, then PRECAD by C."""
        is_whole = not self.defences and not self.clips
        of_table = tuple(defence for defence in DEFENCES if defence.name in self.defences or is_whole)
        known = {defence.name for defence in of_table}
        return of_table + tuple(by for by in map(precad_with, sorted(set(self.clips))) if by.name not in known)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return K, one after the other."""
        return tuple(self.attackers) or ATTACKERS.get(self.dataset, ATTACKERS["mnist"])

    @property
    def printed(self) -> dict[tuple[str, int], float]:
        """Return the paper's backdoor accuracy by defence and K."""
        if (point := PRINTED_BACKDOOR.get(self.dataset)) is None:
            return {}
        clip, k, value = point
        return {(precad_with(clip).words, k): value}

    @property
    def attack(self) -> str:
        """Return a name of `precad.clients.attacks`."""
        return "semantic-backdoor" if self.dataset == "cifar10" else "pixel-backdoor"

    def case(self, defence: Defence, n_attackers: int) -> Case:
        """Return one defence against so many attackers."""
        name = f"{defence.name}-k{n_attackers}"
        every = EVALUATE_EVERY if self.dataset == "cifar10" else runner.EPOCH
        attack = {"kind": self.attack, "clients": n_attackers, "parameters": {"divides": self.divides}}
        return Case(
            name=name,
            labels={"defence": defence.words, "attackers": n_attackers},
            config=runner.paper_config(
                name=name,
                rounds=self.rounds,
                clients=N_CLIENTS,
                sigma=self.sigma,
                clip=defence.clip or 30.0,  # without one enforced by nobody
                dataset=self.dataset,
                model=self.model,
                device=self.device,
                simulation={**defence.simulation, "evaluate_every": every, "attack": attack},
            ),
        )


def quick(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    return {
        "attackers": QUICK_ATTACKERS.get(given["dataset"], QUICK_ATTACKERS["mnist"]),
        "seeds": 1,
        "rounds": QUICK_ROUNDS,
    }


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    cases = [experiment.case(defence, k) for k in experiment.numbers for defence in experiment.trained]
    return runner.reported(
        "precad-backdoor",
        experiment,
        cases,
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "attackers": experiment.numbers,
            "model": cases[0].config["task"]["model"],
            "attack": experiment.attack,
            "cases": [backdoors.of_case(outcome, outcome.reported()) for outcome in outcomes],
            "evaluations": runner.what_is_reported(outcomes),
            "clean_accuracy_floor": backdoors.CLEAN_ACCURACY_FLOOR,
        },
        paragraph=paragraph,
        draw=lambda outcomes, report: _save_figures(folder, experiment, outcomes, report),
    )


def _save_figures(folder: Path, experiment: Experiment, outcomes: Sequence[Outcome], report: Mapping[str, Any]) -> None:
    """Draw Figure 4, and Figure 5 where there are several C."""
    backdoors.save_figures(
        folder / "backdoor",
        outcomes,
        experiment.numbers,
        [defence.words for defence in experiment.trained],
        N_CLIENTS,
        xlabel=backdoors.EPOCHS,
        printed=experiment.printed,
    )
    if experiment.clips:
        panels = len(experiment.numbers)
        runner.save_figure(lambda axes: _by_clip(axes, experiment, report), folder / "figure-5.png", panels=panels)


def _by_clip(axes: Any, experiment: Experiment, report: Mapping[str, Any]) -> None:
    """Draw both accuracies by C, a panel for each K."""
    of_words = {precad_with(clip).words: clip for clip in sorted(set(experiment.clips))}
    for panel, k in zip(axes, experiment.numbers, strict=True):
        own = [case for case in report["cases"] if case["attackers"] == k and case["defence"] in of_words]
        for colour, key in zip(runner.COLOURS, ("accuracy", "backdoor"), strict=False):
            known = [case for case in own if case[key]["mean"] is not None]
            clips, means = [of_words[case["defence"]] for case in known], [case[key]["mean"] for case in known]
            panel.plot(clips, means, color=colour, marker=".", label=key)
            printed = PRINTED_BACKDOOR.get(experiment.dataset)
            if key == "backdoor" and printed is not None and printed[1] == k:
                runner.mark_paper(panel, [(printed[0], printed[2])], colour=colour, label=f"{key}, the paper")
        panel.set(xlabel="C", ylabel="accuracy", title=f"K = {k} of {N_CLIENTS}", ylim=(-0.02, 1.02))


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    whole = "the paper's T" if report["rounds"] == ROUNDS else f"not the paper's {ROUNDS}"
    uploads = "divide the malicious update" if report["divides"] else "each upload the whole malicious update"
    return (
        f"{report['attack']} on {report['dataset']}, model {report['model']}, {N_CLIENTS} clients, "
        f"sigma = {report['sigma']:g}, {report['rounds']} rounds ({whole}), {report['seeds']} seed(s). The attackers "
        f"of a round {uploads}. "
        f"Backdoor accuracy and accuracy, {report['evaluations']}: {backdoors.in_words(report)}. "
        f"{backdoors.floor_in_words()} {_verdict(report)}{PAPER.get(report['dataset'], '')}"
    ).rstrip()


def _verdict(report: Mapping[str, Any]) -> str:
    """Return whether the separation that the paper claims at K = 5 is there."""
    at = {case["defence"]: case["backdoor"]["mean"] for case in report["cases"] if case["attackers"] == GOAL_ATTACKERS}
    wanted = ("PRECAD, C = 20", "local DP, C = 30", "local DP, no C", "non-private")
    if report["dataset"] != "mnist" or any(name not in at for name in wanted):
        return ""
    bounded, local, unbounded, nothing = (at[name] for name in wanted)
    holds = {  # a model below the floor shows neither that a defence works nor that an attack does
        "PRECAD with C = 20 below 0.2": bounded is not None and bounded < 0.2,
        "local DP with C = 30 above 0.8": local is not None and local > 0.8,
        "local DP without C above 0.8": unbounded is not None and unbounded > 0.8,
        "non-private above 0.8": nothing is not None and nothing > 0.8,
    }
    return "At K = 5: " + ", ".join(f"{what}: {'yes' if is_so else 'NO'}" for what, is_so in holds.items()) + ". "


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    rejected = {"rejected": lambda case: f"{case['rejected']['mean']:.0f}"}
    backdoors.print_cases(console, report, title="PRECAD, Figures 4 and 5", extra=rejected)
