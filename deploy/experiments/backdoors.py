"""What experiments with backdoors share: a case's two accuracies, in words, in a table and as curves.

Backdoor accuracy is counted on images that are not of the target class anyway (`clients.attacks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.experiments import runner
from deploy.experiments.runner import Outcome

Shown = Callable[[Mapping[str, Any]], str]


def of_case(outcome: Outcome) -> dict[str, Any]:
    """What the report holds of a case, its labels first: over the seeds, means of the last five evaluations."""
    return {
        **outcome.case.labels,
        "accuracy": outcome.over_seeds("accuracy_of_last_evaluations"),
        "backdoor": outcome.over_seeds("attack_success_of_last_evaluations"),
        "rejected": outcome.over_seeds("rejected"),
        "diverged": outcome.diverged,
    }


def in_words(report: Mapping[str, Any]) -> str:
    """Every case's backdoor accuracy and accuracy."""
    return "; ".join(
        f"{case['defence']}, K = {case['attackers']}: {share(case['backdoor'])} at accuracy {share(case['accuracy'])}"
        + (f" ({case['diverged']} of {report['seeds']} runs diverged)" if case["diverged"] else "")
        for case in report["cases"]
    )


def share(values: Mapping[str, float | None]) -> str:
    """A figure over the seeds."""
    if values["mean"] is None:
        return "-"
    spread = "" if values["min"] == values["max"] else f" ({values['min']:.3f} to {values['max']:.3f})"
    return f"{values['mean']:.3f}{spread}"


def draw(axes: Any, outcomes: Sequence[Outcome], *, k: int, defences: Sequence[str], title: str, xlabel: str) -> None:
    """Accuracy, and beside it backdoor accuracy, of every defence against K attackers."""
    for colour, defence in zip(runner.COLOURS, defences, strict=False):
        labels = {"defence": defence, "attackers": k}
        rows = [row for outcome in outcomes if outcome.case.labels == labels for row in outcome.rows]
        for panel, measure in zip(axes, ("accuracy", "attack_success"), strict=True):
            runner.draw_curves(panel, rows, measure, colour=colour, label=defence)
    for panel, what in zip(axes, ("test accuracy", "backdoor accuracy"), strict=True):
        panel.set(xlabel=xlabel, ylabel=what, title=title, ylim=(-0.02, 1.02))


def print_cases(console: Console, report: Mapping[str, Any], *, title: str, extra: Mapping[str, Shown]) -> None:
    """For people. extra: further columns, and what each shows of a case."""
    table = Table(title=title, title_justify="left")
    for column in ("K", "defence", "accuracy", "backdoor accuracy", *extra):
        table.add_column(column, justify="left" if column == "defence" else "right")
    for case in report["cases"]:
        shares = (share(case["accuracy"]), share(case["backdoor"]))
        table.add_row(str(case["attackers"]), case["defence"], *shares, *(show(case) for show in extra.values()))
    runner.print_result(console, table, report)
