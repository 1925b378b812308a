"""Train one configuration several times: `precad run --seeds N`.

Each training is a run of its own in a folder of its own, `seed-0` and so on. The task, the initial model and the deal
of the records are the same; every draw is the operating system's and so another one. A certificate takes the mean of
such models' confidences (`precad certify --run DIR`).

    trainings.json   which trainings are finished, and what they came to together
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.configuration.local import resolve
from precad.deploy.errors import ConfigError, UnfulfilledError
from precad.deploy.localhost.summary import conditions_of
from precad.deploy.localhost.whole import complete, folder_of, prepare
from precad.deploy.run_files.folder import TRAININGS, RunFolder, each_training, require_new, write_trainings
from precad.deploy.run_files.spent import costs_of_run, earlier_of_several, epsilon_of_several
from precad.deploy.run_files.state import RunState, state_of
from precad.deploy.shown import tables
from precad.dp.accountants.pld import View, unit_words
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task

_FIGURES: Final = ("accuracy", "attack_success", "seconds_total")
Shown = Callable[[Mapping[str, Any], RunFolder, Task], None]
"""(summary, folder, task): told of each training that has ended."""


def train_several(
    raw: Mapping[str, Any],
    output: Path | None,
    console: Console,
    number: int,
    *,
    shown: Shown,
    dashboard: bool = False,
    resumes: bool = False,
) -> dict[str, Any]:
    """Train so often, one after the other, and return what all came to.

    resumes: leave finished trainings as they are, and continue the one that ended early. Raises what a run raises;
    then the trainings before are kept. Raises ConfigError for fewer trainings than are there: all of them were paid.
    """
    root = _root(raw, output, resumes=resumes)
    n_begun = next(i for i in itertools.count() if not RunFolder(root / f"seed-{i}").config.is_file())
    if number < n_begun:
        raise ConfigError(f"--seeds: expected at least the {n_begun} trainings that {root} has, found {number}")
    n_finished = len(each_training(root)) if (root / TRAININGS).exists() else 0
    summaries: list[dict[str, Any]] = []
    costs: list[Sequence[TaskCost]] = []
    found: dict[str, Any] = {}
    for i in range(number):
        folder = RunFolder(root / f"seed-{i}")
        console.print(f"training {i + 1} of {number}: {folder.root}", highlight=False, markup=False, soft_wrap=True)
        summary, task = trained(raw, folder, console, shown=shown, dashboard=dashboard)
        summaries.append(summary)
        costs.append(costs_of_run(folder, task))
        found = {**together(summaries, task, costs), "output": str(root)}
        if i + 1 >= n_finished:  # one that ends early leaves what is written of those before
            write_trainings(root, found)
    return found


def _root(raw: Mapping[str, Any], output: Path | None, *, resumes: bool) -> Path:
    if output is None:
        if resumes:
            raise ConfigError("--resume: expected the folder of the trainings, found none")
        return folder_of(raw).absolute()
    if not resumes:
        require_new(output)
    elif not output.is_dir():
        raise ConfigError(f"--resume: expected the folder of the trainings, found no folder {output}")
    return output.absolute()


def trained(
    raw: Mapping[str, Any],
    folder: RunFolder,
    console: Console,
    *,
    shown: Shown = lambda *_: None,
    dashboard: bool = False,
    measured_every: int = 1,
) -> tuple[dict[str, Any], Task]:
    """Return the summary of one training, and its task. One that has ended already is left as it is.

    shown: told of a training that ends here. measured_every: see LocalRun. Raises what a run raises.
    """
    state = state_of(folder.root) if folder.config.is_file() else None
    if state is RunState.FINISHED:
        from precad.deploy.localhost.resuming import require_same

        _, deployment, _ = resolve(raw, folder)
        require_same(deployment, folder)
        return json.loads(folder.summary.read_text(encoding="utf-8")), deployment.task
    resumes = state is not None
    local = prepare(raw, folder.root, console, dashboard=dashboard, resumes=resumes, measured_every=measured_every)
    try:
        summary = complete(local)
    finally:
        local.close()
    shown(summary, local.folder, local.deployment.task)
    return summary, local.deployment.task


def together(
    summaries: Sequence[Mapping[str, Any]], task: Task, costs: Sequence[Sequence[TaskCost]] = ()
) -> dict[str, Any]:
    """Return mean and spread of what was measured, and what all models together cost whoever is in all of them.

    costs: by the ledgers of each training's servers, which count earlier tasks; none: the task alone counts.
    """
    figures = {name: [summary[name] for summary in summaries if summary.get(name) is not None] for name in _FIGURES}
    measured = [summary.get("metrics", {}) for summary in summaries]
    figures |= {name: [one[name] for one in measured if name in one] for one in measured for name in one}
    privacy, counted = task_privacy(task), costs or [[task_cost(task)]] * len(summaries)
    earlier = [one for of_server in earlier_of_several(counted) for one in of_server]
    return {
        "trainings": [Path(summary["output"]).name for summary in summaries],
        **{name: spread(values) for name, values in figures.items() if values},
        "accepted": sum(summary["accepted"] for summary in summaries),
        "rejected": sum(summary["rejected"] for summary in summaries),
        "missing": sum(summary["missing"] for summary in summaries),
        "model_is_finite": all(summary["model_is_finite"] for summary in summaries),
        "epsilon_of_all_models": {
            view.value: _plain(epsilon_of_several(counted, view, 0, discarded=True)) for view in View
        },
        "epsilon_is_of": unit_words(privacy.unit, privacy.group_size),
        "delta": task.delta,
        **({"rests_on": conditions} if (conditions := conditions_of(task, earlier)) else {}),
    }


def _plain(epsilon: float) -> float | str:
    """Return a number for JSON, which has no infinity."""
    return "inf" if math.isinf(epsilon) else epsilon


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean, the sample's standard deviation, the standard error of the mean, and every value.

    A single value has no deviation.
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {
        "mean": statistics.fmean(values),
        "standard_deviation": deviation,
        "standard_error": None if deviation is None else deviation / math.sqrt(len(values)),
        "least": min(values),
        "most": max(values),
        "each": list(values),
    }


def print_together(console: Console, found: Mapping[str, Any]) -> None:
    """Print what all trainings came to."""
    table = tables.facts()
    number = len(found["trainings"])
    table.add_row("trainings", f"{number}, each from fresh randomness")
    for name, value in found.items():
        if isinstance(value, Mapping) and "mean" in value:
            error = value["standard_error"]
            between = f"between {value['least']:.4g} and {value['most']:.4g}"
            said = "" if error is None else f" +- {error:.4g} (standard error), {between}"
            table.add_row(name.replace("_", " "), f"{value['mean']:.4g}{said}")
    of_all = ", ".join(f"{view.replace('_', ' ')} {_bound(e)}" for view, e in found["epsilon_of_all_models"].items())
    at = f"for {found['epsilon_is_of']} at delta = {found['delta']:g}"
    table.add_row("privacy", f"all models together, {at}: {of_all}")
    for condition in found.get("rests_on", ()):
        table.add_row("", f"rests on: {condition}")
    table.add_row("certificate", f"precad certify --run {shlex.quote(found['output'])}")
    console.print(table, highlight=False)


def _bound(epsilon: float | str) -> str:
    from precad.deploy.shown.figures import three_digits

    return f"epsilon {three_digits(float(epsilon))}"


def require_all_finite(found: Mapping[str, Any]) -> None:
    """Raise UnfulfilledError where one of the trainings left the finite numbers."""
    if not found["model_is_finite"]:
        raise UnfulfilledError("a training diverged: its model, outputs or loss are not finite")
