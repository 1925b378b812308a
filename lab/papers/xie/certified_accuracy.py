"""Certified accuracy of what Xie et al. train on two classes: what `userdp-certified` and `insdp-certified` share.

Each noise multiplier is trained from the same public model as many times as there are seeds. The mean confidences of
these models stand for the expected ones. From the same confidences, certified accuracy by the number of attackers:

    radius      the means with Hoeffding's radius, all samples together with probability 0.99
    estimate    the means as if they were the expectations, which is what the paper does with 1000 trainings

by the published method, the proved curve and the exact law (`precad.dp.certificates.prediction`), for attackers who
join and for attackers who replace others. An attacker is what the training's guarantee is about: a client, or a record.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from precad.deploy.guarantees.certificates import Request, certify_runs
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import PldAccountant
from precad.dp.certificates.prediction import Method, Threat, published_epsilon
from precad.lab.papers import runner
from precad.lab.papers.runner import Outcome
from precad.lab.papers.xie.certified_setting import Experiment
from precad.lab.papers.xie.classes import PublicStart, started
from precad.lab.simulation import simulate
from precad.lab.simulation.workers import Workers

PAPER_TRAININGS: Final = 1000
"""Sec. 6.1.5."""
GOAL: Final = 0.02
"""Goal for the distance from the paper's accuracies."""
_EVIDENCES: Final[Mapping[str, str]] = {"radius": "with the radius", "estimate": "means as exact"}


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, make certificates and figure, and return the report. Continue what the folder holds.

    Raises: ConfigError, DataError.
    """
    experiment = experiment.filled()
    runner.require_trainable(experiment.cases(), experiment)
    start, experiment = started(experiment, folder, console, workers)
    setting, told = experiment.setting, experiment.told
    outcomes = runner.run_cases(experiment.cases(), experiment, folder, console, workers)
    found = [_of_case(experiment, outcome, folder) for outcome in outcomes]
    curves = [row for case in found for row in case["curves"]]
    report: dict[str, Any] = {
        "experiment": setting.command,
        "title": f"Xie et al., {setting.title}, {experiment.dataset}",
        "dataset": experiment.dataset,
        "classes": list(told.labels),
        "model": told.model,
        "public_start": None if start is None else start.to_json(),
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "deployed": experiment.deployed,
        "output": str(folder),
        "cases": [{name: value for name, value in case.items() if name != "curves"} for case in found],
    }
    runner.write(folder, report, outcomes, paragraph(report, experiment, start))
    runner.write_rows(folder / "certified.csv", curves)
    for threat in Threat:
        rows = [row for row in curves if row["threat"] == threat.value]
        runner.save_figure(
            lambda axes, rows=rows: _draw(axes, rows, experiment),  # type: ignore[misc]
            folder / f"certified-{threat.value}.png",
            panels=len(experiment.sigmas),
        )
    return report


def _of_case(experiment: Experiment, outcome: Outcome, folder: Path) -> dict[str, Any]:
    of_case, seeds, row = outcome.case.labels, experiment.seeds, experiment.row
    plan = simulate.resolve(outcome.case.config)
    told, test, training = experiment.told, plan.split.test, experiment.training(plan.task)
    confidences, labels = told.mean_confidences(folder / outcome.case.name, seeds, test), told.indices(test)
    accuracies = [run["accuracy"] for run in outcome.runs]
    curves, certified = [], {}
    for threat in Threat:
        certificates = certify_runs(
            confidences.tolist(),
            labels.tolist(),
            training,
            Request(delta=row.delta, threat=threat),
            n_runs=seeds,
            provenance={},
        )
        rows = [{**of_case, "threat": threat.value, **line} for line in _rows(certificates)]
        curves += rows
        certified[threat.value] = {
            evidence: {method.value: _most(rows, evidence, method) for method in Method} for evidence in _EVIDENCES
        }
    return {
        **of_case,
        "accuracy": outcome.over_seeds("accuracy"),
        "standard_error": statistics.stdev(accuracies) / math.sqrt(seeds) if seeds > 1 else None,
        "accuracy_of_mean_confidence": float(np.mean(confidences.argmax(axis=1) == labels)),
        "paper": experiment.printed(outcome.case),
        "epsilon_published": published_epsilon(training, row.delta),
        "epsilon_proved": PldAccountant().epsilon(training.event, training.rounds, row.delta),
        "radius": certificates["run"]["radius"],
        "runs_needed": certificates["run"]["runs_needed"],
        "most_attackers": certified,
        "curves": curves,
    }


def _rows(certificates: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return certified accuracy by evidence, method and k."""
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
    """Return the largest k for which at least half of the samples are certified; None where not even k = 0."""
    found = [
        row["k"]
        for row in rows
        if row["evidence"] == evidence and row["method"] == method and row["certified_accuracy"] >= 0.5
    ]
    return max(found, default=None)


def paragraph(report: Mapping[str, Any], experiment: Experiment, start: PublicStart | None) -> str:
    """Say what came out, beside what the paper says."""
    cases, setting, row = report["cases"], experiment.setting, experiment.row
    accuracies = "; ".join(f"sigma = {_named(case, cases)}: {_clean(case, row.table)}" for case in cases)
    tolerated = "; ".join(
        f"sigma = {_named(case, cases)}: "
        + ", ".join(
            f"{_number(by_method[Method.PUBLISHED])} published and {_number(by_method[Method.EXACT])} exact "
            f"{_EVIDENCES[evidence]}"
            for evidence, by_method in case["most_attackers"][Threat.ADD].items()
        )
        for case in cases
    )
    is_paper = "the" if report["rounds"] == row.rounds else "not the"
    rounds = f"({is_paper} paper's {row.rounds})" if setting.has_rounds else "(the paper states none)"
    return (
        f"{setting.algorithm} on {report['dataset']}, {experiment.told.words}, {report['rounds']} round(s) "
        f"{rounds}, {report['seeds']} training(s) of each sigma (the paper has "
        f"{PAPER_TRAININGS}). Clean accuracy, mean over the trainings: {accuracies}. Joining {setting.unit} that the "
        f"predictions of half of the test samples are certified against, from the same models: {tolerated}. With "
        "the radius the exact number is a bound, with probability 0.99 over the trainings; the published one rests on "
        f"an epsilon that is a reproduction, not a bound. Means as exact are an approximation. {setting.differs}"
        + ("" if start is None else f" {start.words}")
    )


def _clean(case: Mapping[str, Any], table: str) -> str:
    mean, error, paper = case["accuracy"]["mean"], case["standard_error"], case["paper"]
    said = f"{mean:.4f}" + ("" if error is None else f" (standard error {error:.4f})")
    if paper is None:
        return said
    verdict = "within" if abs(mean - paper) <= GOAL else "NOT within"
    return f"{said}, {table} has {paper:.4f}, {verdict} two points"


def _number(k: int | None) -> str:
    return "none" if k is None else str(k)


def _varied(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return those ways of clipping and of dealing records in which cases differ."""
    return [name for name in ("clipping", "records") if len({case.get(name) for case in cases}) > 1]


def _variant(case: Mapping[str, Any], varied: Sequence[str]) -> str:
    return ", ".join(case[name] for name in varied)


def _named(case: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> str:
    """Return a case's sigma, and what else sets it apart from the others."""
    variant = _variant(case, _varied(cases))
    return f"{case['sigma']:g}" + (f" ({variant})" if variant else "")


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> None:
    """Draw a panel for each sigma."""
    draw_into = partial(_draw_several, varied=_varied(rows)) if _varied(rows) else _draw_one
    for panel, sigma in zip(axes, experiment.sigmas, strict=True):
        draw_into(panel, [row for row in rows if row["sigma"] == sigma])
        what = f"{experiment.setting.unit} k"
        panel.set(xlabel=what, ylabel="certified accuracy", title=f"sigma = {sigma:g}", ylim=(-0.02, 1.02))


def _draw_one(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw bounds solid, what rests on a published epsilon dashed, estimates dotted."""
    for colour, method in zip(runner.COLOURS, Method, strict=False):
        for evidence in _EVIDENCES:
            curve = [row for row in rows if (row["method"], row["evidence"]) == (method.value, evidence)]
            style = ":" if evidence == "estimate" else "--" if method is Method.PUBLISHED else "-"
            label = f"{method.value}, {_EVIDENCES[evidence]} ({curve[0]['label'].replace('_', ' ')})"
            _plot(panel, curve, style, colour, label)


def _draw_several(panel: Any, rows: Sequence[Mapping[str, Any]], *, varied: Sequence[str]) -> None:
    """Draw a colour for each way of clipping and dealing: published and exact, with means as exact, as in the paper."""
    variants = dict.fromkeys(_variant(row, varied) for row in rows)
    for colour, variant in zip(cycle(runner.COLOURS), variants, strict=False):
        for method, style in ((Method.EXACT, "-"), (Method.PUBLISHED, "--")):
            of_curve = (variant, method.value, "estimate")
            curve = [row for row in rows if (_variant(row, varied), row["method"], row["evidence"]) == of_curve]
            _plot(panel, curve, style, colour, f"{variant}: {method.value} ({curve[0]['label']})")


def _plot(panel: Any, curve: Sequence[Mapping[str, Any]], style: str, colour: str, label: str) -> None:
    ks, shares = [row["k"] for row in curve], [row["certified_accuracy"] for row in curve]
    panel.plot(ks, shares, style, color=colour, marker=".", label=label)


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    columns = ("sigma", "accuracy", "paper", "epsilon published", "epsilon proved", "threat", "evidence")
    table = titled(report["title"], *columns, *(f"k, {method.value}" for method in Method))
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
                    _named(case, report["cases"]),
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
