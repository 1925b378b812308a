"""`precad experiment ptr-mnist`: TSGD + PTR beside TSGD + Gaussian on MNIST or CIFAR-10 with corrupted records, at
equal epsilon.

The settings are the seven of either data set in the source's Table 1. A share of all records has wrong labels, noise
N(0, 100) on every pixel, or N(0, 100) on its gradient in every round. If asked for, they also have what the paper has
on EMNIST. That is Table 3's corruptions, every label 9 less itself and gradients with flipped signs, and Table 4's
DP-SGD.

The paper trains on a server that holds the records, with a batch of 256, or 1024 on CIFAR-10. Here each record is a
client of `precad simulate`, in a round with probability batch / N. The two mechanisms are its aggregation rules, so
that what is proved for a client is proved for a record. The parameters are those of the paper's B.1.3. Each mechanism
trains for as many rounds as its own proved bound allows within epsilon. An accuracy is the mean of the last five
evaluations until then. Both bounds are by privacy loss distributions. The paper has Renyi divergences for both. Two
more columns therefore have the same trainings after the fewer rounds that those allow, if any.

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.errors import ConfigError
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
from precad.dp.accountants.side_by_side import RdpAccountant
from precad.lab.papers import runner
from precad.lab.papers.ptr.settings import (
    CORRUPTIONS,
    DPSGD,
    GAUSSIAN,
    PTR,
    PTR_PARAMETERS,
    QUICK_CORRUPTIONS,
    TABLE_3,
    TRAININGS,
    Corruption,
    Method,
    Training,
)
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.rules import TsgdGaussian
from precad.lab.simulation.workers import Workers

QUICK_EPSILONS: Final[Mapping[str, tuple[float, ...]]] = {"mnist": (1.2,), "cifar10": (4.0,)}
"""Other data sets have MNIST's."""
DELTA, EVALUATE_EVERY, LAST_EVALUATIONS = 1e-5, 50, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    corruptions: Sequence[str] = tuple(corruption.name for corruption in CORRUPTIONS)
    epsilons: Sequence[float] = ()
    """None: the paper's for the data set."""
    model: str | None = None
    """In place of the paper's for the data set."""
    with_dpsgd: bool = False

    def __post_init__(self) -> None:
        runner.require_known("--corruption", self.corruptions, [one.name for one in CORRUPTIONS + TABLE_3])
        for epsilon in self.prices:
            runner.require_positive("--epsilon", epsilon)
            for method in (self.training.gaussian, self.training.ptr):
                rounds = self.rounds(method, epsilon)
                if rounds < EVALUATE_EVERY:
                    raise ConfigError(
                        f"--epsilon: expected enough for {EVALUATE_EVERY} rounds of {method.words}, found {epsilon}, "
                        f"which is for {rounds}"
                    )

    @property
    def settings(self) -> tuple[Corruption, ...]:
        """Return rows of the table."""
        return tuple(corruption for corruption in CORRUPTIONS + TABLE_3 if corruption.name in self.corruptions)

    @property
    def training(self) -> Training:
        """Return what the paper trains on the data set."""
        return TRAININGS[self.dataset]

    @property
    def prices(self) -> tuple[float, ...]:
        """Return the epsilons, one after the other."""
        return tuple(self.epsilons) or self.training.epsilons

    @property
    def methods(self) -> tuple[Method, ...]:
        """Return the methods that are trained."""
        of = self.training
        return (of.gaussian, of.ptr, of.dpsgd) if self.with_dpsgd else (of.gaussian, of.ptr)

    def rounds(self, method: Method, epsilon: float, price: Price | None = None) -> int:
        """Return the most rounds that are proved to cost at most epsilon; `price`: by another bound than the rule's
        own."""
        of = self.training
        return rounds_within(functools.partial(price or proved_epsilon, method, of.n_records, of.rate), epsilon)

    def case(self, corruption: Corruption, method: Method) -> Case:
        """Return one training, for the largest epsilon."""
        of = self.training
        n, rate, bound = of.n_records, of.rate, method.parameters["clip"]
        task = {
            "name": f"ptr-{corruption.name}",
            "clients": n,
            "rounds": self.rounds(method, max(self.prices)),
            "client_rate": rate,
            "record_rate": 1.0,
            "record_clip": bound,
            "client_clip": bound,
            "noise_multiplier": 1.0,  # of servers that are not here: the rule clips and adds the noise
            "learning_rate": of.learning_rate,
            "delta": DELTA,
            "model": self.model or of.model,
        }
        simulation = {
            "algorithm": "non-private",
            "client_clipping": False,
            "aggregation": method.rule.name,
            "aggregation_parameters": {"rate": rate, "n_enrolled": n, **method.parameters},
            "evaluate_every": EVALUATE_EVERY,
            **corruption.attack(n),
        }
        client = {"dataset": self.dataset, "partition": "iid", "device": self.device}
        return Case(
            name=f"{method.name}-{corruption.name}",
            labels={"corruption": corruption.of, "share": corruption.share, "method": method.words},
            config={"task": task, "client": client, "simulation": simulation},
            rounds_per_epoch=1 / rate,
        )


def rounds_within(price: Callable[[int], float], epsilon: float) -> int:
    """Return the most rounds that cost at most epsilon; 0 where one costs more."""
    low, high = 0, 1
    while price(high) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if price(middle) <= epsilon else (low, middle)
    return low


@functools.cache
def proved_epsilon(method: Method, n: int, rate: float, rounds: int) -> float:
    """Bound what so many rounds cost one of n records at DELTA, by the rule's own bound."""
    epsilon = method.rule(rate=rate, n_enrolled=n, **method.parameters).epsilon(rounds, DELTA)
    assert epsilon is not None  # both rules prove one
    return epsilon


@functools.cache
def renyi_epsilon(method: Method, n: int, rate: float, rounds: int) -> float:
    """Bound what so many rounds cost one of n records at DELTA, by Renyi divergences, as in the paper."""
    parameters = method.parameters
    if method.rule is TsgdGaussian:
        return RdpAccountant().epsilon(SampledGaussian(rate, parameters["noise_multiplier"]), rounds, DELTA)
    sigma1, tau, b, delta0 = (parameters[name] for name in PTR_PARAMETERS)
    return eps_ptr_rounds(rate, sigma1, tau, b, delta0, rounds, DELTA)


PAPER: Final[Mapping[str, str]] = {
    "mnist": "The paper has PTR ahead in all seven settings of MNIST, by 0.3 to 3.9 points at epsilon = 3 and by 1.6 "
    "to 11.5 at 5, means of 5 seeds.",
    "cifar10": "The paper has PTR ahead in all seven settings of CIFAR-10, by 0.4 to 1.9 points at epsilon = 7 and by "
    "0.2 to 1.8 at 10, means of 5 seeds.",
}
Price = Callable[[Method, int, float, int], float]
COLUMNS: Final[tuple[tuple[str, int, Price], ...]] = (
    ("gaussian", 0, proved_epsilon),
    ("ptr", 1, proved_epsilon),
    ("gaussian_renyi", 0, renyi_epsilon),
    ("ptr_renyi", 1, renyi_epsilon),
    ("dpsgd", 2, proved_epsilon),
)
"""Columns of the table: which of the methods, and the bound that says for how many rounds it trains."""


def quick(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    return {
        "corruptions": QUICK_CORRUPTIONS,
        "epsilons": QUICK_EPSILONS.get(given["dataset"], QUICK_EPSILONS["mnist"]),
        "seeds": 1,
        "model": TRAININGS[given["dataset"]].quick_model,
    }


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    cases = [experiment.case(corruption, method) for corruption in experiment.settings for method in experiment.methods]
    outcomes = runner.run_cases(cases, experiment, folder, console, workers)
    by_method = (outcomes[i :: len(experiment.methods)] for i in range(len(experiment.methods)))
    trained = list(zip(experiment.settings, *by_method, strict=True))
    report = runner.report_of("ptr-mnist", experiment, folder)
    report |= {"epsilons": experiment.prices, "model": cases[0].config["task"]["model"]}
    report["cases"] = [
        _row(experiment, corruption, found, epsilon) for epsilon in experiment.prices for corruption, *found in trained
    ]
    runner.write(folder, report, outcomes, paragraph(report))
    n_kinds = len({corruption.of for corruption in experiment.settings})
    runner.save_figure(lambda axes: _draw(axes, experiment, trained), folder / "ptr-table-1.png", panels=n_kinds)
    return report


def _row(experiment: Experiment, corruption: Corruption, outcomes: Sequence[Outcome], epsilon: float) -> dict[str, Any]:
    """Return a row of the table at one epsilon. A column is None where epsilon is not for EVALUATE_EVERY rounds of
    it."""
    printed = corruption.paper(experiment.dataset).get(epsilon)
    is_paper = experiment.model in (None, experiment.training.model) and printed is not None
    row: dict[str, Any] = {"corruption": corruption.of, "share": corruption.share, "epsilon": epsilon}
    for key, i, price in COLUMNS:
        rounds = experiment.rounds(experiment.methods[i], epsilon, price) if i < len(outcomes) else 0
        if rounds < EVALUATE_EVERY:
            row[key] = None
            continue
        outcome = outcomes[i]
        found = [_accuracy(outcome, seed, rounds) for seed in range(experiment.seeds)]
        row[key] = {
            "rounds": rounds,
            "accuracy": {"mean": statistics.fmean(found), "min": min(found), "max": max(found)},
            "paper": printed[i] if is_paper and printed and i < len(printed) else None,
            "diverged": outcome.diverged,
        }
    return row


def _accuracy(outcome: Outcome, seed: int, rounds: int) -> float:
    """Return the accuracy of one training in its first so many rounds. A training that diverged before it was evaluated
    has that of the model it ended with."""
    own = [row for row in outcome.rows if row["seed"] == seed]
    return accuracy_until(own, rounds) if own else float(outcome.runs[seed]["accuracy"])


def accuracy_until(rows: Sequence[Mapping[str, Any]], rounds: int) -> float:
    """Return mean of the last five evaluations of one training in its first so many rounds, EVALUATE_EVERY at least.
    The last round is evaluated out of step."""
    due = [r["accuracy"] for r in rows if r["round"] <= rounds and (r["round"] % EVALUATE_EVERY == 0 or r is rows[-1])]
    return statistics.fmean(due[-LAST_EVALUATIONS:])


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    said = []
    for epsilon in dict.fromkeys(case["epsilon"] for case in report["cases"]):
        cases = [case for case in report["cases"] if case["epsilon"] == epsilon]
        first = cases[0]
        rows = ", ".join(f"{case['corruption']} {case['share']:g} {_accuracies(case)}" for case in cases)
        said.append(
            f"At a proved epsilon of {epsilon:g}, {first['gaussian']['rounds']} rounds of {GAUSSIAN.words} and "
            f"{first['ptr']['rounds']} of {PTR.words}, PTR is ahead in {_ahead(cases)} of {len(cases)} settings; "
            f"{_by_renyi(cases)}. PTR against Gaussian: {rows}."
        )
    keys = ("gaussian", "ptr", "dpsgd")
    diverged = sum(case[key]["diverged"] for case in report["cases"] for key in keys if case[key])
    return (
        f"Corrupted records of {report['dataset']}, model {report['model']}, {GAUSSIAN.words} against "
        f"{PTR.words}, a record a client, batches of {TRAININGS[report['dataset']].batch} in expectation, "
        f"{report['seeds']} seed(s); accuracy: the mean of the last {LAST_EVALUATIONS} evaluations, one in "
        f"{EVALUATE_EVERY} rounds. {' '.join(said)} "
        + (f"{diverged} trainings diverged. " if diverged else "")
        + PAPER.get(report["dataset"], PAPER["mnist"])
    )


def _by_renyi(cases: Sequence[Mapping[str, Any]]) -> str:
    """Say how the comparison comes out as the paper accounts it."""
    rounds = [cases[0][key]["rounds"] if cases[0][key] else None for key in ("gaussian_renyi", "ptr_renyi")]
    if None in rounds:
        return f"the paper's Renyi divergences do not allow {EVALUATE_EVERY} rounds of both"
    ahead = _ahead(cases, "_renyi")
    return f"by the paper's Renyi divergences, which allow {rounds[0]} and {rounds[1]}, in {ahead}"


def _accuracies(case: Mapping[str, Any]) -> str:
    ptr, gaussian = (case[key]["accuracy"]["mean"] for key in ("ptr", "gaussian"))
    beside = f", DP-SGD {case['dpsgd']['accuracy']['mean']:.3f}" if case["dpsgd"] else ""
    return f"{ptr:.3f} against {gaussian:.3f} ({_gain(case):+.3f}{beside})"


def _ahead(cases: Sequence[Mapping[str, Any]], by: str = "") -> int:
    """Count the settings in which PTR is ahead."""
    return sum(_gain(case, by) > 0 for case in cases)


def _gain(case: Mapping[str, Any], by: str = "") -> float:
    """Return the accuracy that PTR gains over Gaussian noise; `by`: "_renyi" for as many rounds as Renyi divergences
    allow."""
    gain: float = case["ptr" + by]["accuracy"]["mean"] - case["gaussian" + by]["accuracy"]["mean"]
    return gain


def _draw(axes: Any, experiment: Experiment, trained: Sequence[tuple[Any, ...]]) -> None:
    """Draw a panel for each kind of corruption: accuracy by proved epsilon, PTR solid, Gaussian noise dashed, DP-SGD
    dotted.

    trained  a corruption, and the outcome of each method.
    """
    of = experiment.training
    for panel, kind in zip(axes, dict.fromkeys(setting[0].of for setting in trained), strict=True):
        shown = [setting for setting in trained if setting[0].of == kind]
        for colour, (corruption, *outcomes) in zip(runner.COLOURS, shown, strict=False):
            for method, style, outcome in zip(experiment.methods, ("--", "-", ":"), outcomes, strict=False):
                rounds = sorted({row["round"] for row in outcome.rows})
                means = [statistics.fmean(r["accuracy"] for r in outcome.rows if r["round"] == t) for t in rounds]
                label = f"{method.words}, {corruption.share:.0%}"
                prices = [proved_epsilon(method, of.n_records, of.rate, t) for t in rounds]
                panel.plot(prices, means, style, color=colour, label=label, linewidth=1.2)
                _mark_paper(panel, experiment, corruption, method, colour=colour, label=label)
        panel.set(xlabel="proved ε at δ = 10⁻⁵", ylabel="test accuracy", title=f"{kind} corrupted")


def _mark_paper(
    panel: Any, experiment: Experiment, corruption: Corruption, method: Method, *, colour: str, label: str
) -> None:
    """Mark what the paper prints at the epsilons that are asked for."""
    i, paper = experiment.methods.index(method), corruption.paper(experiment.dataset)
    points = [
        (epsilon, paper[epsilon][i]) for epsilon in experiment.prices if epsilon in paper and i < len(paper[epsilon])
    ]
    runner.mark_paper(panel, points, colour=colour, label=f"{label}, the paper")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    setting, by_renyi = ("epsilon", "corruption", "share"), ("by Renyi: Gaussian", "PTR")
    heads = (*setting, GAUSSIAN.words, PTR.words, "gain", *by_renyi, DPSGD.words, "paper's gain")
    table = titled(f"PTR, Table 1, {report['dataset']}", *heads, words=("corruption",))
    for case in report["cases"]:
        printed = [case[key]["paper"] for key in ("gaussian", "ptr")]
        table.add_row(
            f"{case['epsilon']:g}",
            case["corruption"],
            f"{case['share']:g}",
            *(f"{case[key]['accuracy']['mean']:.4f}" for key in ("gaussian", "ptr")),
            f"{_gain(case):+.4f}",
            *(
                f"{case[key]['accuracy']['mean']:.4f}" if case[key] else "-"
                for key in ("gaussian_renyi", "ptr_renyi", "dpsgd")
            ),
            "-" if None in printed else f"{printed[1] - printed[0]:+.4f}",
        )
    runner.print_result(console, table, report)
