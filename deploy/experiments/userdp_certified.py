"""`precad experiment userdp-certified`: Xie et al.'s Table 4 and Figure 1 on MNIST, clean and certified accuracy.

UserDP-FedAvg on the digits 0 and 1, 200 clients, 20 of them in a round, 10 local epochs, by the paper's Table 2. Each
noise multiplier is trained from the same public model as many times as there are seeds; the mean confidences of these
models stand for the expected ones. From the same confidences, certified accuracy by the number of attackers:

    radius      the means with Hoeffding's radius, all samples together with probability 0.99
    estimate    the means as if they were the expectations, which is what the paper does with 1000 trainings

by the published method, the proved curve and the exact law (`dp.certified_prediction`), for attackers who join and for
attackers who replace clients.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from clients import evaluation
from clients.datasets import Records
from deploy import simulate
from deploy.certify_commands import Request, certify_runs
from deploy.experiments import runner
from deploy.experiments.runner import Case, Outcome
from deploy.workers import Workers
from dp.accounting import PldAccountant, SampledGaussian
from dp.certified_prediction import Method, Threat, Training, published_epsilon

ROUNDS, SEEDS, QUICK_SEEDS = 3, 100, 5
PAPER_TRAININGS: Final = 1000
"""Sec. 6.1.5."""
TABLE_4: Final[Mapping[float, float]] = {
    0.5: 0.9972,
    0.6: 0.9969,
    0.8: 0.9971,
    1.0: 0.9959,
    1.5: 0.9886,
    1.8: 0.9742,
    2.3: 0.8915,
    3.0: 0.7279,
}
"""Clean accuracy by noise multiplier."""
SIGMAS: Final = (1.0, 1.8, 2.3)
GOAL: Final = 0.02
"""Of the distance from Table 4."""
_EVIDENCES: Final[Mapping[str, str]] = {"radius": "with the radius", "estimate": "means as exact"}
CLASSES: Final = (0, 1)
MODEL: Final = "cnn-binary"
N_CLIENTS, CLIENT_RATE, DELTA = 200, 0.1, 0.0029
LOCAL_EPOCHS, BATCHES_AN_EPOCH = 10, 2
"""A client has 63 or 64 records, and a batch 60."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run."""

    sigmas: Sequence[float] = SIGMAS
    rounds: int = ROUNDS
    seeds: int = SEEDS
    """Trainings of each sigma."""
    dataset: str = "mnist"
    device: str = "auto"

    def case(self, sigma: float) -> Case:
        """Table 2 of the paper; SGD with momentum 0.9 and weight decay 0.0005, records dealt i.i.d."""
        name = f"sigma-{sigma:g}"
        task = {
            "name": name,
            "clients": N_CLIENTS,
            "rounds": self.rounds,
            "client_rate": CLIENT_RATE,
            "record_rate": 1.0,
            "record_clip": 1.0,  # of no use here: the server clips updates
            "client_clip": 0.7,
            "noise_multiplier": sigma,
            "learning_rate": 1.0,
            "delta": DELTA,
            "model": MODEL,
        }
        simulation = {
            "algorithm": "user-dp-fedavg",
            "local_steps": LOCAL_EPOCHS * BATCHES_AN_EPOCH,
            "local_batch": 60,
            "local_rate": 0.02,
            "local_momentum": 0.9,
            "local_weight_decay": 0.0005,
            "evaluate_every": ROUNDS,
        }
        client = {"dataset": self.dataset, "classes": list(CLASSES), "device": self.device}
        return Case(
            name=name, labels={"sigma": sigma}, config={"task": task, "client": client, "simulation": simulation}
        )

    def training(self, sigma: float) -> Training:
        """What an attacking client is accounted by."""
        return Training(SampledGaussian(CLIENT_RATE, sigma), self.rounds)


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """All trainings, then certificates and figure; the report. Goes on with what the folder holds.

    Raises: ConfigError, DataError.
    """
    cases = [experiment.case(sigma) for sigma in experiment.sigmas]
    outcomes = runner.run_cases(cases, seeds=experiment.seeds, folder=folder, console=console, workers=workers)
    test = simulate.resolve(cases[0].config).split.test
    found = [_of_case(experiment, outcome, folder, test) for outcome in outcomes]
    curves = [row for case in found for row in case["curves"]]
    report: dict[str, Any] = {
        "experiment": "userdp-certified",
        "dataset": experiment.dataset,
        "classes": list(CLASSES),
        "model": MODEL,
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "output": str(folder),
        "cases": [{name: value for name, value in case.items() if name != "curves"} for case in found],
    }
    report["paragraph"] = paragraph(report)
    runner.write(folder, report, outcomes)
    runner.write_rows(folder / "certified.csv", curves)
    for threat in Threat:
        rows = [row for row in curves if row["threat"] == threat.value]
        runner.save_figure(
            lambda axes, rows=rows: _draw(axes, rows, experiment.sigmas),  # type: ignore[misc]
            folder / f"certified-{threat.value}.png",
            panels=len(experiment.sigmas),
        )
    return report


def mean_confidences(folder: Path, seeds: int, test: Records) -> NDArray[np.float64]:
    """Over the final models of a case's seeds, (n, 2)."""
    total = np.zeros((len(test), len(CLASSES)))
    for seed in range(seeds):
        with np.load(folder / f"seed-{seed}.npz", allow_pickle=False) as saved:
            total += evaluation.confidences(saved["parameters"], MODEL, test)[:, list(CLASSES)]
    mean: NDArray[np.float64] = total / seeds
    return mean


def _of_case(experiment: Experiment, outcome: Outcome, folder: Path, test: Records) -> dict[str, Any]:
    sigma, seeds = outcome.case.labels["sigma"], experiment.seeds
    confidences = mean_confidences(folder / outcome.case.name, seeds, test)
    training = experiment.training(sigma)
    accuracies = [run["accuracy"] for run in outcome.runs]
    curves, certified = [], {}
    for threat in Threat:
        certificates = certify_runs(
            confidences.tolist(),
            test.labels.tolist(),
            training,
            Request(delta=DELTA, threat=threat),
            n_runs=seeds,
            provenance={},
        )
        rows = [{"sigma": sigma, "threat": threat.value, **row} for row in _rows(certificates)]
        curves += rows
        certified[threat.value] = {
            evidence: {method.value: _most(rows, evidence, method) for method in Method} for evidence in _EVIDENCES
        }
    return {
        "sigma": sigma,
        "accuracy": outcome.over_seeds("accuracy"),
        "standard_error": statistics.stdev(accuracies) / math.sqrt(seeds) if seeds > 1 else None,
        "accuracy_of_mean_confidence": float(np.mean(confidences.argmax(axis=1) == test.labels)),
        "paper": TABLE_4.get(sigma) if experiment.dataset == "mnist" and experiment.rounds == ROUNDS else None,
        "epsilon_published": published_epsilon(training, DELTA),
        "epsilon_proved": PldAccountant().epsilon(training.event, training.rounds, DELTA),
        "radius": certificates["run"]["radius"],
        "runs_needed": certificates["run"]["runs_needed"],
        "most_attackers": certified,
        "curves": curves,
    }


def _rows(certificates: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Certified accuracy by evidence, method and k."""
    estimate = certificates["estimate"]
    evidences = {
        "radius": (certificates["labels"], certificates["certified_accuracy"]),
        "estimate": (dict.fromkeys(Method, estimate["label"]), estimate["certified_accuracy"]),
    }
    return [
        {"evidence": evidence, "method": method, "label": labels[method], "k": k, "certified_accuracy": share}
        for evidence, (labels, curves) in evidences.items()
        for method, curve in curves.items()
        for k, share in enumerate(curve)
    ]


def _most(rows: Sequence[Mapping[str, Any]], evidence: str, method: Method) -> int | None:
    """The largest k for which at least half of the samples are certified; None where not even k = 0."""
    found = [
        row["k"]
        for row in rows
        if row["evidence"] == evidence and row["method"] == method and row["certified_accuracy"] >= 0.5
    ]
    return max(found, default=None)


def paragraph(report: Mapping[str, Any]) -> str:
    """What came out, beside what the paper says."""
    cases = report["cases"]
    accuracies = "; ".join(f"sigma = {case['sigma']:g}: {_clean(case)}" for case in cases)
    attackers = "; ".join(
        f"sigma = {case['sigma']:g}: "
        + ", ".join(
            f"{_number(by_method[Method.PUBLISHED])} published and {_number(by_method[Method.EXACT])} exact "
            f"{_EVIDENCES[evidence]}"
            for evidence, by_method in case["most_attackers"][Threat.ADD].items()
        )
        for case in cases
    )
    is_paper = "the" if report["rounds"] == ROUNDS else "not the"
    return (
        f"UserDP-FedAvg on {report['dataset']}, classes 0 and 1, {N_CLIENTS} clients, {report['rounds']} rounds "
        f"({is_paper} paper's {ROUNDS}), {report['seeds']} training(s) of each sigma (the paper has "
        f"{PAPER_TRAININGS}). Clean accuracy, mean over the trainings: {accuracies}. Joining attackers that the "
        f"predictions of half of the test samples are certified against, from the same models: {attackers}. With "
        "the radius the exact number is a bound, with probability 0.99 over the trainings; the published one rests on "
        "an epsilon that is a reproduction, not a bound. Means as exact are an approximation. Clients are drawn by "
        f"Poisson sampling of rate {CLIENT_RATE:g} where the paper draws 20 of 200."
    )


def _clean(case: Mapping[str, Any]) -> str:
    mean, error, paper = case["accuracy"]["mean"], case["standard_error"], case["paper"]
    said = f"{mean:.4f}" + ("" if error is None else f" (standard error {error:.4f})")
    if paper is None:
        return said
    verdict = "within" if abs(mean - paper) <= GOAL else "NOT within"
    return f"{said}, Table 4 has {paper:.4f}, {verdict} two points"


def _number(k: int | None) -> str:
    return "none" if k is None else str(k)


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], sigmas: Sequence[float]) -> None:
    """A panel for each sigma; bounds solid, what rests on a published epsilon dashed, estimates dotted."""
    for panel, sigma in zip(axes, sigmas, strict=True):
        for colour, method in zip(runner.COLOURS, Method, strict=False):
            for evidence in _EVIDENCES:
                curve = [
                    row
                    for row in rows
                    if (row["sigma"], row["method"], row["evidence"]) == (sigma, method.value, evidence)
                ]
                style = ":" if evidence == "estimate" else "--" if method is Method.PUBLISHED else "-"
                label = f"{method.value}, {_EVIDENCES[evidence]} ({curve[0]['label'].replace('_', ' ')})"
                ks, shares = [row["k"] for row in curve], [row["certified_accuracy"] for row in curve]
                panel.plot(ks, shares, style, color=colour, marker=".", label=label)
        panel.set(xlabel="attackers k", ylabel="certified accuracy", title=f"sigma = {sigma:g}", ylim=(-0.02, 1.02))


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """For people."""
    table = Table(title="Xie et al., Table 4 and Figure 1, MNIST", title_justify="left")
    for column in ("sigma", "accuracy", "paper", "epsilon published", "epsilon proved", "threat", "evidence"):
        table.add_column(column, justify="right")
    for method in Method:
        table.add_column(f"k, {method.value}", justify="right")
    for case in report["cases"]:
        for threat, evidences in case["most_attackers"].items():
            for evidence, by_method in evidences.items():
                paper = "-" if case["paper"] is None else f"{case['paper']:.4f}"
                epsilons = (
                    f"{case['epsilon_published']:.4f}",
                    f"<= {math.ceil(case['epsilon_proved'] * 1e4) / 1e4:.4f}",
                )
                numbers = (_number(by_method[method]) for method in Method)
                table.add_row(
                    f"{case['sigma']:g}",
                    f"{case['accuracy']['mean']:.4f}",
                    paper,
                    *epsilons,
                    threat,
                    evidence,
                    *numbers,
                )
    console.print(table, highlight=False)
    console.print("k: attackers that the predictions of at least half of the samples are certified against")
    console.print(report["paragraph"], highlight=False, markup=False)
    console.print(f"written to {report['output']}", highlight=False, markup=False, soft_wrap=True)
