"""Report what experiments with backdoors share: a case's two accuracies, in words, in a table and as curves.

Backdoor accuracy is counted on images that are not of the target class anyway (`precad.clients.attacks`). It is counted
only where the clean accuracy exceeds `CLEAN_ACCURACY_FLOOR`: a model that calls every image the target class holds no
backdoor.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rich.console import Console

from precad.lab.papers import runner
from precad.lab.papers.runner import Evaluations, Outcome

CLEAN_ACCURACY_FLOOR: Final = 0.5
"""Clean accuracy above which backdoor accuracy counts.

A model that is right on more than half of the clean images errs on at most 0.56 of those of the nine other classes.
That bounds the share that it takes for the target class without any backdoor. One that calls every image the target
class has an accuracy of 0.1.
"""

EPOCHS: Final = "epoch (200 rounds)"
"""Label of an axis."""
Shown = Callable[[Mapping[str, Any]], str]


def of_case(
    outcome: Outcome, evaluations: Sequence[Evaluations], *, floor: float = CLEAN_ACCURACY_FLOOR
) -> dict[str, Any]:
    """Return what the report holds of a case, its labels first: means of each seed's `evaluations`, over the seeds.

    An evaluation at or below the floor counts for the accuracy and not for the backdoor; `below_floor` is their number.
    A seed with no evaluation above the floor has no backdoor accuracy.
    """
    counted = [[found for found in of_seed if found[0] > floor] for of_seed in evaluations]
    return {
        **outcome.case.labels,
        "accuracy": runner.spread([_mean([accuracy for accuracy, _ in of_seed]) for of_seed in evaluations]),
        "backdoor": runner.spread([_mean([success for _, success in of_seed]) for of_seed in counted if of_seed]),
        "below_floor": sum(map(len, evaluations)) - sum(map(len, counted)),
        "rejected": outcome.over_seeds("rejected"),
        "diverged": outcome.diverged,
    }


def final_models(outcome: Outcome) -> list[Evaluations]:
    """Return the evaluation of each seed's final model."""
    return [[(run["accuracy"], run["attack_success"])] for run in outcome.runs]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def in_words(report: Mapping[str, Any]) -> str:
    """Return every case's backdoor accuracy and accuracy."""
    return "; ".join(
        f"{case['defence']}, K = {case['attackers']}: {share(case['backdoor'])} at accuracy {share(case['accuracy'])}"
        + (f" ({case['below_floor']} evaluation(s) below the floor)" if case["below_floor"] else "")
        + (f" ({case['diverged']} of {report['seeds']} runs diverged)" if case["diverged"] else "")
        for case in report["cases"]
    )


def floor_in_words(floor: float = CLEAN_ACCURACY_FLOOR) -> str:
    """Return the sentence that says which evaluations count for a backdoor."""
    return f'A backdoor counts only where the accuracy exceeds {floor:g} ("-": nowhere).'


def share(values: Mapping[str, float | None]) -> str:
    """Return a figure over the seeds."""
    if values["mean"] is None:
        return "-"
    spread = "" if values["min"] == values["max"] else f" ({values['min']:.3f} to {values['max']:.3f})"
    return f"{values['mean']:.3f}{spread}"


def draw(
    axes: Any,
    outcomes: Sequence[Outcome],
    *,
    k: int,
    defences: Sequence[str],
    title: str,
    xlabel: str,
    floor: float = CLEAN_ACCURACY_FLOOR,
    printed: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Draw accuracy, and beside it backdoor accuracy where it counts, of every defence against K attackers.

    printed: the paper's backdoor accuracy by defence, which is marked at the end of the curve.
    """
    every = zip(itertools.cycle(runner.COLOURS), defences, runner.nested_markers(len(defences)), strict=False)
    for colour, defence, looks in every:
        labels = {"defence": defence, "attackers": k}
        rows = [row for outcome in outcomes if outcome.case.labels == labels for row in outcome.rows]
        if not rows:
            continue  # which was not trained
        counted = [row for row in rows if row["accuracy"] > floor]
        runner.draw_curves(axes[0], rows, "accuracy", colour=colour, label=defence, looks=looks)
        runner.draw_curves(axes[1], counted, "attack_success", colour=colour, label=defence, looks=looks)
        points = [(max(row["epoch"] for row in rows), printed[defence])] if defence in printed else []
        runner.mark_paper(axes[1], points, colour=colour, label=f"{defence}, the paper's backdoor")
    backdoor = f"backdoor accuracy (where accuracy > {floor:g})"
    for panel, what in zip(axes, ("test accuracy", backdoor), strict=True):
        panel.set(xlabel=xlabel, ylabel=what, title=title, ylim=(-0.02, 1.02))


def save_figures(
    path: Path,
    outcomes: Sequence[Outcome],
    numbers: Sequence[int],
    defences: Sequence[str],
    n_clients: int,
    *,
    xlabel: str = "round",
    floor: float = CLEAN_ACCURACY_FLOOR,
    printed: Mapping[tuple[str, int], float] = MappingProxyType({}),
) -> None:
    """Save a figure for each number K of attackers, as `path` with -kK.png behind it.

    printed: the paper's backdoor accuracy by defence and K.
    """
    for k in numbers:
        title = f"K = {k} of {n_clients}"
        own = {defence: value for (defence, of), value in printed.items() if of == k}
        looks = partial(
            draw, outcomes=outcomes, k=k, defences=defences, title=title, xlabel=xlabel, floor=floor, printed=own
        )
        runner.save_figure(looks, path.with_name(f"{path.name}-k{k}.png"))


def print_cases(
    console: Console,
    report: Mapping[str, Any],
    *,
    title: str,
    extra: Mapping[str, Shown],
    floor: float = CLEAN_ACCURACY_FLOOR,
) -> None:
    """Print the cases for people. extra: further columns, and what each shows of a case."""
    columns: dict[str, Shown] = {
        "K": lambda case: str(case["attackers"]),
        "defence": itemgetter("defence"),
        "accuracy": lambda case: share(case["accuracy"]),
        "backdoor accuracy": lambda case: share(case["backdoor"]),
        **extra,
    }
    looks = {"words": ("defence",), "caption": floor_in_words(floor)}
    runner.print_table(console, report, title, report["cases"], columns, **looks)
