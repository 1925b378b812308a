"""`precad experiment precad-backdoor`: PRECAD's Figures 4 and 5, what K attackers of 100 do under which defence.

MNIST: the pixel pattern; CIFAR-10: the semantic backdoor. The attackers replace the model (Sec. 3.2, Appendix E) from
the first round on, within whatever bound somebody enforces. Of each number of attackers, one training for each seed of

    PRECAD      C = 20, C = 30, and without any bound on a client (its form with only privacy, Sec. 7)
    local DP    C = 30, enforced after the clients' noise, of which attackers add none; C = 30 for honest clients alone;
                and without any bound
    non-private nothing is bounded

Backdoor accuracy is counted on images that are not of the target class anyway (`clients.attacks`), where the paper
counts all of them, so that a model without a backdoor has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from deploy.experiments import runner
from deploy.experiments.runner import Case, Outcome
from deploy.workers import Workers

ROUNDS, QUICK_ROUNDS = 5000, 1000
EVALUATE_EVERY: Final = 50
"""Rounds, on CIFAR-10, where trainings are short; an epoch elsewhere."""
N_CLIENTS: Final = 100
ATTACKERS: Final[Mapping[str, tuple[int, ...]]] = {"mnist": (5, 10), "cifar10": (1, 3)}
"""Of the paper's Figure 5."""


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
GOAL_ATTACKERS: Final = 5
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
class Experiment:
    """What is run."""

    dataset: str = "mnist"
    attackers: Sequence[int] = ()
    """Empty: the paper's for the data set."""
    sigma: float = 1.0
    rounds: int = ROUNDS
    seeds: int = 3
    model: str | None = None
    """In place of the paper's for the data set."""
    device: str = "auto"

    @property
    def numbers(self) -> tuple[int, ...]:
        """K, one after the other."""
        return tuple(self.attackers) or ATTACKERS.get(self.dataset, ATTACKERS["mnist"])

    @property
    def attack(self) -> str:
        """A name of `clients.attacks`."""
        return "semantic-backdoor" if self.dataset == "cifar10" else "pixel-backdoor"

    def case(self, defence: Defence, n_attackers: int) -> Case:
        """One defence against so many attackers."""
        name = f"{defence.name}-k{n_attackers}"
        every = EVALUATE_EVERY if self.dataset == "cifar10" else runner.EPOCH
        attack = {"kind": self.attack, "clients": n_attackers}
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


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """All trainings, then the figure; the report. Goes on with what the folder holds. Raises ConfigError, DataError."""
    cases = [experiment.case(defence, k) for k in experiment.numbers for defence in DEFENCES]
    outcomes = runner.run_cases(cases, seeds=experiment.seeds, folder=folder, console=console, workers=workers)
    report = runner.report_of("precad-backdoor", experiment, folder)
    report |= {
        "attackers": experiment.numbers,
        "model": cases[0].config["task"]["model"],
        "attack": experiment.attack,
        "cases": [_of_case(outcome) for outcome in outcomes],
    }
    report["paragraph"] = paragraph(report)
    runner.write(folder, report, outcomes)
    for k in experiment.numbers:
        runner.save_figure(lambda axes, k=k: _draw(axes, outcomes, k), folder / f"backdoor-k{k}.png")  # type: ignore[misc]
    return report


def _of_case(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.case.labels,
        "accuracy": outcome.over_seeds("accuracy_of_last_evaluations"),
        "backdoor": outcome.over_seeds("attack_success_of_last_evaluations"),
        "rejected": outcome.over_seeds("rejected"),
        "diverged": outcome.diverged,
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """What came out, beside what the paper says."""
    found = "; ".join(
        f"{case['defence']}, K = {case['attackers']}: {_share(case['backdoor'])} at accuracy {_share(case['accuracy'])}"
        + (f" ({case['diverged']} of {report['seeds']} runs diverged)" if case["diverged"] else "")
        for case in report["cases"]
    )
    is_whole = report["rounds"] == ROUNDS
    whole = "the paper's T" if is_whole else f"not the paper's {ROUNDS}"
    return (
        f"{report['attack']} on {report['dataset']}, model {report['model']}, {N_CLIENTS} clients, "
        f"sigma = {report['sigma']:g}, {report['rounds']} rounds ({whole}), {report['seeds']} seed(s). "
        f"Backdoor accuracy, mean of the last five evaluations: {found}. "
        f"{_verdict(report)}{PAPER.get(report['dataset'], '')}"
    ).rstrip()


def _verdict(report: Mapping[str, Any]) -> str:
    """Whether the separation that the paper claims at K = 5 is there."""
    at = {case["defence"]: case["backdoor"]["mean"] for case in report["cases"] if case["attackers"] == GOAL_ATTACKERS}
    wanted = ("PRECAD, C = 20", "local DP, C = 30", "local DP, no C", "non-private")
    if report["dataset"] != "mnist" or any(at.get(name) is None for name in wanted):
        return ""
    bounded, local, unbounded, nothing = (at[name] for name in wanted)
    holds = {
        "PRECAD with C = 20 below 0.2": bounded < 0.2,
        "local DP with C = 30 above 0.8": local > 0.8,
        "local DP without C above 0.8": unbounded > 0.8,
        "non-private above 0.8": nothing > 0.8,
    }
    return "At K = 5: " + ", ".join(f"{what}: {'yes' if is_so else 'NO'}" for what, is_so in holds.items()) + ". "


def _share(values: Mapping[str, float | None]) -> str:
    if values["mean"] is None:
        return "-"
    spread = "" if values["min"] == values["max"] else f" ({values['min']:.3f} to {values['max']:.3f})"
    return f"{values['mean']:.3f}{spread}"


def _draw(axes: Any, outcomes: Sequence[Outcome], k: int) -> None:
    for colour, defence in zip(runner.COLOURS, DEFENCES, strict=False):
        labels = {"defence": defence.words, "attackers": k}
        rows = [row for outcome in outcomes if outcome.case.labels == labels for row in outcome.rows]
        for panel, measure in zip(axes, ("accuracy", "attack_success"), strict=True):
            runner.draw_curves(panel, rows, measure, colour=colour, label=defence.words)
    for panel, what in zip(axes, ("test accuracy", "backdoor accuracy"), strict=True):
        panel.set(xlabel="epoch (200 rounds)", ylabel=what, title=f"K = {k} of {N_CLIENTS}", ylim=(-0.02, 1.02))


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """For people."""
    table = Table(title="PRECAD, Figures 4 and 5", title_justify="left")
    for column in ("K", "defence", "accuracy", "backdoor accuracy", "rejected"):
        table.add_column(column, justify="left" if column == "defence" else "right")
    for case in report["cases"]:
        rejected = f"{case['rejected']['mean']:.0f}"
        shares = (_share(case["accuracy"]), _share(case["backdoor"]))
        table.add_row(str(case["attackers"]), case["defence"], *shares, rejected)
    runner.print_result(console, table, report)
