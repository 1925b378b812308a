"""Run the trainings of papers' experiments by `precad simulate`, and write what is made of them.

A case is one configuration, trained once for each seed. A folder holds one run folder for each case, as `precad
simulate` leaves it (`precad.lab.simulation.simulate`), and what is made of them all:

    curves.csv   every evaluation of every run
    report.json  what `--json` prints
    report.txt   what came out beside what the paper says, one paragraph
    table.csv    the table as it is printed (`precad.lab.papers.page`)
    *.png        the figure

An experiment of the same cases in the same folder is continued, run by run; more rounds may be asked for.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from precad.clients.gradients.engine import RecordEngine
from precad.deploy.errors import ConfigError
from precad.deploy.files.whole import write_whole
from precad.deploy.shown.drawing import load_pyplot
from precad.deploy.shown.figures import plain
from precad.deploy.shown.tables import titled
from precad.lab.simulation import simulate
from precad.lab.simulation.progress import Trainings
from precad.lab.simulation.workers import Workers

AVERAGED: Final = 5
"""Evaluations at the end of a long training, whose mean is reported."""
SHORT_OF: Final = 2 * AVERAGED
"""With fewer evaluations, their last five reach back into the training's beginning: the final model is reported."""
EPOCH: Final = 200
"""Rounds, with the paper's q = 0.1 and p = 0.05: each record is seen once, in expectation."""
PANEL_WIDTH, PANEL_HEIGHT, LEGEND_ROW = 5.25, 4.2, 0.18
"""Inches, of figures."""
IN_A_ROW: Final = 3
"""Panels that a page shows in a row, readable at its width."""
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#C98B00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart."""


Evaluations = Sequence[tuple[float, float | None]]
"""Evaluations of one training: clean accuracy and attack success of each; no success where the attack has no aim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Say what every experiment trains with; a module's own fields are its paper's."""

    seeds: int = 3
    device: str = "auto"
    first_seed: int = 0
    """Seed of the first training; the others follow."""
    deployed: bool = False
    """Whether two real servers train, by `precad.lab.papers.two_servers`, in place of simulations."""
    mode: str | None = None
    """The mode of these servers; `masked` where none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetExperiment(Experiment):
    """An experiment on a data set that is asked for."""

    dataset: str = "mnist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration."""

    name: str
    """Name of its folder."""
    labels: Mapping[str, Any]
    """Values that set it apart: columns of curves.csv, beside seed, round, epoch and what was measured."""
    config: Mapping[str, Any]
    """Configuration of `precad simulate`."""
    rounds_per_epoch: float = EPOCH

    def from_seed(self, first: int) -> Case:
        """Return the case with its trainings drawn from seed `first` on."""
        if not first:
            return self
        return replace(self, config={**self.config, "simulation": {**self.config["simulation"], "first_seed": first}})

    def in_mode(self, mode: str | None) -> Case:
        """Return the case with its task in this mode: in the default one where it is None.

        Whoever asks an experiment for mode `shares` consents to it for the experiment's records.
        """
        if mode is None:
            return self
        consent = {"accept_weak_wire_form": True} if mode == "shares" else {}
        return replace(self, config={**self.config, "task": {**self.config["task"], "mode": mode, **consent}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what the runs of a case came to."""

    case: Case
    dim: int
    runs: Sequence[Mapping[str, Any]]
    """The summaries, a seed each."""
    rows: Sequence[Mapping[str, Any]]
    """The evaluations, in the columns of curves.csv."""
    ms_per_round: float | None
    """Median over all rounds of all runs, evaluations left out."""

    def over_seeds(self, name: str) -> dict[str, float | None]:
        """Return mean, least and most over the seeds of a figure of the summaries; None where a run has none."""
        return spread([run[name] for run in self.runs])

    def reported(self) -> list[Evaluations]:
        """Return of each seed the last five evaluations, or, after a short training, that of the final model."""
        every = self.case.config["simulation"]["evaluate_every"]
        found: list[Evaluations] = []
        for run in self.runs:
            rows = [row for row in self.rows if row["seed"] == run["seed"]]
            due = [row for row in rows if row["round"] % every == 0 or row["round"] == run["rounds"]]
            final = {"accuracy": run["accuracy"], "attack_success": run["attack_success"]}
            shown = due[-AVERAGED:] if len(due) >= SHORT_OF else [final]
            found.append([(row["accuracy"], row.get("attack_success")) for row in shown])
        return found

    @property
    def diverged(self) -> int:
        """Count the runs that diverged."""
        return sum(run["diverged_in_round"] is not None for run in self.runs)


def what_is_reported(outcomes: Sequence[Outcome]) -> str:
    """Say which evaluations `Outcome.reported` took of these trainings."""
    sizes = {len(of_seed) for outcome in outcomes for of_seed in outcome.reported()}
    words = {AVERAGED: f"the mean of the last {AVERAGED} evaluations", 1: "that of the final model"}
    return ", or ".join(words[size] for size in sorted(sizes, reverse=True))


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return mean, least and most; None where there is no value, or one is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return {"mean": None, "min": None, "max": None}
    return {"mean": statistics.fmean(known), "min": min(known), "max": max(known)}


def paper_config(
    *,
    name: str,
    rounds: int,
    clients: int = 100,
    sigma: float = 1.0,
    clip: float = 20.0,
    dataset: str = "mnist",
    model: str | None = None,
    device: str = "auto",
    simulation: Mapping[str, Any],
) -> dict[str, Any]:
    """Return PRECAD's Sec. 6.1 and Appendix E: q = 0.1, p = 0.05, eta = 0.1, R = 2, delta = 1e-5, one evaluation an
    epoch.

    MNIST, and what has its shape: 4 shards for each client, the CNN of Opacus' example on standardised pixels.
    CIFAR-10: Dirichlet(0.5), the CNN of TensorFlow's tutorial. `model`: another.
    """
    is_cifar = dataset == "cifar10"
    return {
        "task": {
            "name": name,
            "clients": clients,
            "rounds": rounds,
            "client_rate": 0.1,
            "record_rate": 0.05,
            "record_clip": 2.0,
            "client_clip": clip,
            "noise_multiplier": sigma,
            "learning_rate": 0.1,
            "delta": 1e-5,
            "model": model or ("cifar" if is_cifar else "cnn-standardised"),
        },
        "client": {"dataset": dataset, "partition": "dirichlet" if is_cifar else "shards", "device": device},
        "simulation": {"evaluate_every": EPOCH, **simulation},
    }


def run_cases(
    cases: Sequence[Case],
    experiment: Experiment,
    folder: Path,
    console: Console,
    workers: Workers | None = None,
    *,
    seeds: int | None = None,
) -> list[Outcome]:
    """Run all trainings, one after the other unless there are workers, to the same bits.

    Those that the folder already holds are left as they are. `seeds` replaces the experiment's number, for these
    cases. Raises ConfigError, ArgumentError.
    """
    seeds = experiment.seeds if seeds is None else seeds
    cases = [case.from_seed(experiment.first_seed) for case in cases]
    if experiment.deployed:
        return _deployed([case.in_mode(experiment.mode) for case in cases], seeds, folder, console, workers)
    if experiment.mode is not None:
        raise ConfigError(f"--mode: expected --deployed beside it, found {experiment.mode!r} without")
    if workers is not None:
        return _side_by_side(cases, seeds, folder, console, workers)
    engines: dict[tuple[str, str, str], RecordEngine] = {}
    outcomes = []
    with Trainings(console, len(cases) * seeds) as trainings:
        for case in cases:
            runs = simulate.Runs(simulate.resolve(case.config), folder / case.name)
            plan = runs.plan
            key = (plan.task.model, plan.client.dataset, plan.client.device)
            if key not in engines:
                engines[key] = plan.simulation(0).federation.engine
            summaries = []
            for seed in range(seeds):
                with trainings.one(f"{case.name}, seed {seed}", plan.task.rounds) as advance:
                    summaries.append(runs.run(seed, on_round=advance, engine=engines[key]))
            outcomes.append(_simulated(case, plan.task.dim, runs.folder, summaries))
    return outcomes


def require_trainable(cases: Sequence[Case], experiment: Experiment) -> None:
    """Raise ConfigError unless two real servers, where they are to train, can train all cases.

    An experiment that trains in several steps asks so before the first of them.
    """
    if not experiment.deployed:
        return
    from precad.lab.papers import two_servers

    asked = [case.from_seed(experiment.first_seed).in_mode(experiment.mode) for case in cases]
    two_servers.require_runnable({case.name: case.config for case in asked})


def reported(
    name: str,
    experiment: Experiment,
    cases: Sequence[Case],
    folder: Path,
    console: Console,
    workers: Workers | None,
    *,
    found: Callable[[Sequence[Outcome]], Mapping[str, Any]],
    paragraph: Callable[[Mapping[str, Any]], str],
    draw: Callable[[Sequence[Outcome], Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Run all trainings, write the report with what was `found` in them, and draw their figures. Return the report.

    Raises ConfigError, ArgumentError.
    """
    outcomes = run_cases(cases, experiment, folder, console, workers)
    report = {**report_of(name, experiment, folder), **found(outcomes)}
    write(folder, report, outcomes, paragraph(report))
    draw(outcomes, report)
    return report


def _side_by_side(cases: Sequence[Case], seeds: int, folder: Path, console: Console, workers: Workers) -> list[Outcome]:
    """Run every seed of every case as a job of its own."""
    jobs, dims = [], []
    for case in cases:
        runs = simulate.Runs(simulate.resolve(case.config), (folder / case.name).absolute())
        jobs += runs.jobs(range(seeds))
        dims.append(runs.plan.task.dim)
    with Trainings(console, len(jobs)) as trainings:
        done = trainings.side_by_side(jobs, workers)
    return [
        _simulated(case, dim, folder / case.name, done[i * seeds : (i + 1) * seeds])
        for i, (case, dim) in enumerate(zip(cases, dims, strict=True))
    ]


def _deployed(
    cases: Sequence[Case], seeds: int, folder: Path, console: Console, workers: Workers | None
) -> list[Outcome]:
    """Run all trainings on two real servers, one after the other. Raises ConfigError, and what a run raises."""
    from precad.lab.papers import two_servers

    if workers is not None:
        raise ConfigError(
            "--deployed: expected no --workers and no --ray, as a run has processes of its own, found one"
        )
    two_servers.require_runnable({case.name: case.config for case in cases})
    outcomes = []
    for case in cases:
        dim, summaries, lines = two_servers.train(case.config, folder / case.name, seeds, console)
        outcomes.append(_outcome(case, dim, summaries, lines))
    return outcomes


def _simulated(case: Case, dim: int, folder: Path, summaries: Sequence[Mapping[str, Any]]) -> Outcome:
    """Return the outcome of simulations, whose rounds are in a file of each seed."""
    files = [folder / f"seed-{summary['seed']}.jsonl" for summary in summaries]
    lines = [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    return _outcome(case, dim, summaries, lines)


def _outcome(
    case: Case, dim: int, summaries: Sequence[Mapping[str, Any]], rounds: Sequence[Sequence[Mapping[str, Any]]]
) -> Outcome:
    rows, seconds = [], []
    for summary, lines in zip(summaries, rounds, strict=True):
        seed = summary["seed"]
        rows += [{**case.labels, "seed": seed, **row} for row in _evaluations(lines, case.rounds_per_epoch)]
        seconds += [line["seconds"] for line in lines]
    ms = 1000 * statistics.median(seconds) if seconds else None
    return Outcome(case=case, dim=dim, runs=summaries, rows=rows, ms_per_round=ms)


def _evaluations(lines: Sequence[Mapping[str, Any]], rounds_per_epoch: float) -> list[dict[str, Any]]:
    return [
        {
            "round": line["round"] + 1,
            "epoch": (line["round"] + 1) / rounds_per_epoch,
            **{name: line[name] for name in ("accuracy", "attack_success") if name in line},
        }
        for line in lines
        if "accuracy" in line
    ]


def largest_epsilon(outcome: Outcome, guarantee: int = 0) -> float | str | None:
    """Return the largest epsilon of one of the guarantees, over the runs, as JSON has it; None where one run has
    none."""
    epsilons = [run["guarantees"][guarantee]["epsilon"] for run in outcome.runs]
    return None if None in epsilons else plain(max(map(float, epsilons)))


def asked_for(module: Any, given: Mapping[str, Any], *, quick: bool) -> Any:
    """Return a module's experiment: of what is given its fields, then what --quick takes, then the paper's values.

    None and an empty list are nothing given. Where a module has no `quick`, --quick takes one seed and QUICK_ROUNDS.
    Raises ConfigError.
    """
    names = {field.name for field in fields(module.Experiment)}
    found = {name: _as_field(value) for name, value in given.items() if name in names and value not in (None, [])}
    if not quick:
        return module.Experiment(**found)
    short = module.quick(found) if hasattr(module, "quick") else {"seeds": 1, "rounds": module.QUICK_ROUNDS}
    return module.Experiment(**(short | found))


def require_known(flag: str, given: Sequence[str], known: Collection[str]) -> None:
    """Raise ConfigError, naming the flag, unless all given names are among the known ones."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{flag}: expected one of {', '.join(known)}, found {name!r}")


def require_positive(flag: str, *values: float) -> None:
    """Raise ConfigError, naming the flag, unless all values are positive and finite."""
    for value in values:
        if not 0 < value < math.inf:
            raise ConfigError(f"{flag}: expected a finite number above 0, found {value}")


def _as_field(value: Any) -> Any:
    """Return a flag's value as fields have it: a list's without repetitions, a name's as text."""
    if isinstance(value, list):
        return tuple(dict.fromkeys(value))
    return value.value if isinstance(value, Enum) else value


def report_of(name: str, experiment: Any, folder: Path) -> dict[str, Any]:
    """Return what a report begins with: which experiment, the fields of its dataclass, and where it is."""
    return {"experiment": name, **asdict(experiment), "output": str(folder)}


def write(folder: Path, report: dict[str, Any], outcomes: Sequence[Outcome], paragraph: str) -> None:
    """Write curves.csv, report.json, report.txt, each in one step. The report gets its `paragraph`."""
    report["paragraph"] = paragraph
    write_rows(folder / "curves.csv", [row for outcome in outcomes for row in outcome.rows])
    write_whole(folder / "report.json", (json.dumps(report, indent=2, allow_nan=False) + "\n").encode())
    write_whole(folder / "report.txt", (paragraph + "\n").encode())


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV, in the columns of them all; what a row lacks is left empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def print_table(
    console: Console,
    report: Mapping[str, Any],
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]],
    **looks: Any,
) -> None:
    """Print a report whose table has a line for each row. columns: what each shows of a row. looks: of `titled`."""
    table = titled(title, *columns, **looks)
    for row in rows:
        table.add_row(*(show(row) for show in columns.values()))
    print_result(console, table, report)


def written(value: float | str | None, format_of: Callable[[Any], str]) -> str:
    """Return a value as a table has it; a dash where there is none."""
    return "-" if value is None else format_of(value)


def print_result(console: Console, table: Table, report: Mapping[str, Any]) -> None:
    """Print the table, the paragraph, and where everything is."""
    console.print(table, highlight=False)
    console.print(report["paragraph"], highlight=False, markup=False)
    console.print(f"written to {report['output']}", highlight=False, markup=False, soft_wrap=True)


def nested_markers(n: int) -> list[dict[str, Any]]:
    """Return looks of n curves in the order of drawing: of curves that coincide, each has a hollow mark in the last."""
    every = zip(itertools.cycle("osD^v"), range(n, 0, -1), strict=False)
    return [{"marker": marker, "markersize": 3 + 10 * i / n, "markerfacecolor": "none"} for marker, i in every]


def draw_curves(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    measure: str,
    *,
    colour: str,
    label: str,
    looks: Mapping[str, Any] = MappingProxyType({"marker": "."}),
) -> None:
    """Draw the mean over the seeds by epoch, with the range behind it."""
    epochs = sorted({row["epoch"] for row in rows})
    values = [[row[measure] for row in rows if row["epoch"] == epoch] for epoch in epochs]
    axes.plot(epochs, [statistics.fmean(v) for v in values], color=colour, label=label, **looks)
    axes.fill_between(epochs, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.2, linewidth=0)


def mark_paper(axes: Any, points: Sequence[tuple[float, float]], *, colour: str, label: str) -> None:
    """Mark values (x, y) that the paper prints, where they would lie in the plot; none leave no entry in its legend."""
    if not points:
        return
    x, y = zip(*points, strict=True)
    axes.plot(
        x, y, color=colour, linestyle="none", marker="X", markersize=9, markeredgecolor="black", zorder=5, label=label
    )


def save_figure(draw: Callable[[Any], None], path: Path, *, panels: int = 2) -> None:
    """Save a PNG of so many panels, three in a row at most, drawn by `draw`, which gets their axes. Raises ConfigError
    without matplotlib."""
    pyplot = require_matplotlib()
    columns = min(panels, IN_A_ROW)
    rows = math.ceil(panels / columns)
    size = (PANEL_WIDTH * columns, PANEL_HEIGHT * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, dpi=80, layout="constrained", squeeze=False)
    axes, beyond = grid.reshape(-1)[:panels], grid.reshape(-1)[panels:]
    for panel in beyond:
        panel.remove()
    draw(axes)
    for panel in axes:
        panel.grid(alpha=0.3)
    _legends_below(figure, axes, columns)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    pyplot.close(figure)
    write_whole(path, image.getvalue())


def _legends_below(figure: Any, panels: Sequence[Any], in_a_row: int) -> None:
    """Put legends below the axes, where they cover no curve: one for all panels where they show the same."""
    shown = [panel.get_legend_handles_labels() for panel in panels]
    is_one = all(labels == shown[0][1] for _, labels in shown)
    columns = in_a_row if is_one else 1
    rows, of_panels = max(math.ceil(len(labels) / columns) for _, labels in shown), math.ceil(len(panels) / in_a_row)
    height = PANEL_HEIGHT * of_panels + LEGEND_ROW * rows * (1 if is_one else of_panels)
    figure.set_size_inches(PANEL_WIDTH * in_a_row, height)
    if is_one:
        figure.legend(*shown[0], loc="outside lower center", ncols=columns, fontsize=8)
        return
    for panel, (handles, labels) in zip(panels, shown, strict=True):
        panel.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=8)


def require_matplotlib() -> Any:
    """Return pyplot, drawing into files. Raises ConfigError when it is missing, which is asked for before anything is
    run."""
    return load_pyplot(
        ConfigError(
            'matplotlib: expected for the figure, found none: install "precad[bench]" from where precad came from'
        )
    )
