"""`precad experiment precad-mnist`: PRECAD's Figure 2, privacy and accuracy by epoch on MNIST, on real data.

100 clients with 4 of 400 shards each, q = 0.1, p = 0.05, eta = 0.1, R = 2, T = 5000 rounds (25 epochs of 200), the
privacy-only form: no client clipping, no validation. Of each sigma some seeds, each a run of `precad simulate`.

The update divides by the public W = q sum p N_i, not by the number of records that came. Everything else is the paper's
(Sec. 6.1, 6.2 and Appendix E), whose printed epsilons are those of its central limit.
"""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from clients.per_record import RecordEngine
from deploy import simulate
from deploy.errors import ConfigError
from dp.accounting import PldAccountant, View, round_event
from dp.precad_record import gdp_mu_precad_clients_only, gdp_mu_precad_server_corrupt

SIGMAS: Final = (1.0, 1.5, 2.0)
PRINTED_EPSILON: Final[Mapping[float, float]] = {1.0: 6.8, 1.5: 3.5, 2.0: 2.4}
"""Of the paper, one server corrupted, after 25 epochs, delta = 1e-5. Its accuracies are drawn, not printed."""
ROUNDS, QUICK_ROUNDS, EPOCH = 5000, 1000, 200
N_CLIENTS, CLIENT_RATE, RECORD_RATE, DELTA = 100, 0.1, 0.05, 1e-5
COLUMNS: Final = ("sigma", "seed", "round", "epoch", "accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run."""

    sigmas: Sequence[float] = SIGMAS
    seeds: int = 3
    rounds: int = ROUNDS
    dataset: str = "mnist"
    model: str = "cnn"
    device: str = "auto"

    def config(self, sigma: float) -> dict[str, Any]:
        """Of `precad simulate`."""
        return {
            "task": {
                "name": f"precad-mnist-{sigma:g}",
                "clients": N_CLIENTS,
                "rounds": self.rounds,
                "client_rate": CLIENT_RATE,
                "record_rate": RECORD_RATE,
                "record_clip": 2.0,
                "client_clip": 20.0,  # enforced by nobody here
                "noise_multiplier": sigma,
                "learning_rate": 0.1,
                "delta": DELTA,
                "model": self.model,
            },
            "client": {"dataset": self.dataset, "partition": "shards", "device": self.device},
            "simulation": {"validation": False, "client_clipping": False, "evaluate_every": EPOCH},
        }


def run(experiment: Experiment, folder: Path, console: Console) -> dict[str, Any]:
    """All trainings, then the figure; the report. Goes on with what the folder holds. Raises ConfigError, DataError."""
    summaries, rows = {}, []
    engine: RecordEngine | None = None
    for sigma in experiment.sigmas:
        if not 0 < sigma < float("inf"):
            raise ConfigError(f"--sigma: expected a positive number, found {sigma}")
        plan = simulate.resolve(experiment.config(sigma))
        runs = simulate.Runs(plan, folder / f"sigma-{sigma:g}")
        engine = engine or plan.simulation(0).federation.engine
        found = []
        for seed in range(experiment.seeds):
            with simulate.progress_bar(console, f"sigma {sigma:g}, seed {seed}", experiment.rounds) as advance:
                found.append(runs.run(seed, on_round=advance, engine=engine))
            lines = (runs.folder / f"seed-{seed}.jsonl").read_text().splitlines()
            rows += _rows(sigma, seed, [json.loads(line) for line in lines])
        summaries[sigma] = _of_sigma(sigma, found, dim=plan.task.dim, rounds=experiment.rounds)
    report: dict[str, Any] = {
        "experiment": "precad-mnist",
        "dataset": experiment.dataset,
        "clients": N_CLIENTS,
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "delta": DELTA,
        "output": str(folder),
        "sigmas": list(summaries.values()),
    }
    report["paragraph"] = paragraph(report)
    with (folder / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder / "report.txt").write_text(report["paragraph"] + "\n")
    plot(rows, report, folder / "figure-2.png")
    return report


def _rows(sigma: float, seed: int, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "sigma": sigma,
            "seed": seed,
            "round": line["round"] + 1,
            "epoch": (line["round"] + 1) / EPOCH,
            "accuracy": line["accuracy"],
        }
        for line in lines
        if "accuracy" in line
    ]


def _of_sigma(sigma: float, runs: Sequence[Mapping[str, Any]], *, dim: int, rounds: int) -> dict[str, Any]:
    """Over the seeds: accuracy and its spread; epsilons realised, for the expected participation, and published."""
    accuracies = [run["accuracy_of_last_evaluations"] for run in runs]
    expected = round(CLIENT_RATE * rounds)
    from_limit = {
        View.ONE_SERVER: gdp_mu_precad_server_corrupt(RECORD_RATE, sigma, expected),
        View.CLIENTS_ONLY: gdp_mu_precad_clients_only(CLIENT_RATE, RECORD_RATE, sigma, rounds),
    }
    return {
        "sigma": sigma,
        "accuracy_mean": statistics.fmean(accuracies),
        "accuracy_min": min(accuracies),
        "accuracy_max": max(accuracies),
        "accuracies": accuracies,
        "epsilon_realised": {
            view.value: max(run["guarantees"][i]["epsilon"] for run in runs) for i, view in enumerate(View)
        },
        "epsilon_expected_participation": {view.value: proved_epsilon(view, sigma, expected, dim) for view in View},
        "mu_published": {view.value: mu for view, mu in from_limit.items()},
        "epsilon_printed": PRINTED_EPSILON.get(sigma) if rounds == ROUNDS else None,
        "rounds_per_second": statistics.fmean(run["rounds_per_second"] for run in runs),
    }


def proved_epsilon(view: View, sigma: float, participation: int, dim: int) -> float:
    """Of a record whose client was in so many rounds. A bound."""
    event = round_event(
        view, record_sampling_rate=RECORD_RATE, noise_multiplier=sigma, record_clip=2.0, dim=dim, frac_bits=16
    )
    return PldAccountant().epsilon(event, participation, DELTA)


def paragraph(report: Mapping[str, Any]) -> str:
    """What came out, beside what the paper says."""
    found = []
    for row in report["sigmas"]:
        printed = "" if row["epsilon_printed"] is None else f" (the paper prints {row['epsilon_printed']})"
        found.append(
            f"sigma = {row['sigma']:g}: accuracy {row['accuracy_mean']:.3f} "
            f"(from {row['accuracy_min']:.3f} to {row['accuracy_max']:.3f}), proved epsilon against one server "
            f"{row['epsilon_expected_participation']['one_server']:.2f} for a client that is in the expected number of "
            f"rounds{printed}, {row['epsilon_realised']['one_server']:.2f} for the one that was in most"
        )
    is_whole = report["rounds"] == ROUNDS
    whole = "the paper's T" if is_whole else f"not the paper's {ROUNDS}: accuracies are those of a shorter training"
    ordered = [row["accuracy_mean"] for row in sorted(report["sigmas"], key=lambda row: float(row["sigma"]))]
    falls = all(a >= b for a, b in itertools.pairwise(ordered))
    trend = "falls with sigma, as in Figure 2" if falls else "does not fall with sigma here, unlike in Figure 2"
    return (
        f"PRECAD on {report['dataset']}, privacy-only form, {report['clients']} clients of 4 shards each, "
        f"{report['rounds']} rounds ({whole}), {report['seeds']} seed(s); accuracy is the mean of the last five "
        f"evaluations, one an epoch of {EPOCH} rounds. " + "; ".join(found) + ". "
        f"Accuracy {trend}. The paper draws its accuracies and prints no numbers for them. Its epsilons come "
        "from a central limit and are no bounds: at the same noise what is proved is larger, so a claim at the paper's "
        "epsilon would take more noise than the paper's sigma."
    )


def plot(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any], path: Path) -> None:
    """Two panels: epsilon and accuracy by epoch. Raises ConfigError without matplotlib."""
    pyplot = require_matplotlib()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 4.2), dpi=125, layout="constrained")
    colours = ("#0072B2", "#D55E00", "#009E73", "#C98B00", "#CC79A7")
    epochs = sorted({row["epoch"] for row in rows})
    for colour, of_sigma in zip(colours, report["sigmas"], strict=False):
        sigma = of_sigma["sigma"]
        for view, style, words in ((View.ONE_SERVER, "-", "one server"), (View.CLIENTS_ONLY, "--", "clients only")):
            curve = [proved_epsilon(view, sigma, round(CLIENT_RATE * EPOCH * e), dim=26_010) for e in epochs]
            left.plot(epochs, curve, color=colour, linestyle=style, marker=".", label=f"σ = {sigma:g}, {words}")
        accuracies = [[r["accuracy"] for r in rows if r["sigma"] == sigma and r["epoch"] == e] for e in epochs]
        right.plot(epochs, [statistics.fmean(a) for a in accuracies], color=colour, marker=".", label=f"σ = {sigma:g}")
        right.fill_between(epochs, [min(a) for a in accuracies], [max(a) for a in accuracies], color=colour, alpha=0.2)
    left.set(xlabel="epoch (200 rounds)", ylabel="ε at δ = 10⁻⁵", title="Proved ε, expected participation")
    right.set(xlabel="epoch (200 rounds)", ylabel="test accuracy", title=f"Accuracy, {report['seeds']} seed(s)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)


def require_matplotlib() -> Any:
    """pyplot, drawing into files. Raises ConfigError when it is missing, which is asked for before anything is run."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise ConfigError('matplotlib: expected for the figure, found none: pip install "precad[bench]"') from None


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """For people."""
    table = Table(title="PRECAD, Figure 2", title_justify="left")
    for column in ("sigma", "accuracy", "ε one server", "ε clients only", "ε printed", "rounds/s"):
        table.add_column(column, justify="right")
    for row in report["sigmas"]:
        expected = row["epsilon_expected_participation"]
        table.add_row(
            f"{row['sigma']:g}",
            f"{row['accuracy_mean']:.4f}",
            f"{expected['one_server']:.2f}",
            f"{expected['clients_only']:.2f}",
            "-" if row["epsilon_printed"] is None else f"{row['epsilon_printed']:g}",
            f"{row['rounds_per_second']:.1f}",
        )
    console.print(table, highlight=False)
    console.print(report["paragraph"], highlight=False, markup=False)
    console.print(f"written to {report['output']}", highlight=False, markup=False, soft_wrap=True)
