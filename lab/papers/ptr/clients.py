"""`precad experiment ptr-clients`: TSGD + PTR of the PTR paper's Table 1 by PRECAD's two servers, one record a client.

10,000 clients hold a record of MNIST each, and 256 of them are in a round in expectation. Both servers compute the test
and the trimmed sum on shares (`task.algorithm = "tsgd-ptr"`), in a simulation or as processes (`--deployed`). The paper
has 60,000 records on one server, which draws the batches and hides them. Here servers know who was drawn. What is
proved for a client is therefore no useful bound. There are as many rounds as the paper's setting, with as many records,
would allow at the epsilon. The parameters are those of the paper's B.1.3; each server adds Gaussian noise of sigma R
and Laplace noise b of its own.

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.records.holdout import is_kept_aside
from precad.clients.records.source import DataSource
from precad.deploy.errors import ConfigError
from precad.deploy.figures import at_most
from precad.deploy.tables import titled
from precad.lab.papers import runner
from precad.lab.papers.ptr.mnist import BATCH, DELTA, LEARNING_RATE, MODEL, proved_epsilon, rounds_within
from precad.lab.papers.ptr.settings import CORRUPTIONS, PTR, Corruption
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

N_CLIENTS, QUICK_CLIENTS, EVALUATE_EVERY = 10_000, 60, 10
REGISTRATION_TIMEOUT_S: Final = 3600.0
"""How long the run waits for its clients' twenty thousand connections, which take minutes of processor time."""
HOLDOUT: Final = 0.2
"""Share of the records that the accuracy is measured on: a quarter as many as clients have."""
NAMES: Final = tuple(corruption.name for corruption in CORRUPTIONS)


def records(n_clients: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first records of MNIST of which so many are no test records, and a quarter as many are."""
    train = DataSource(dataset="mnist").load(side=28).train
    n_looked_at = min(len(train), 2 * n_clients + 1000)
    some = train.take(np.arange(n_looked_at))
    aside = is_kept_aside(some, HOLDOUT, 0)
    kept = np.concatenate([np.flatnonzero(~aside)[:n_clients], np.flatnonzero(aside)[: n_clients // 4]])
    taken = some.take(np.sort(kept))
    return taken.features, taken.labels


def ten_thousand() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the records of the experiment."""
    return records(N_CLIENTS)


def sixty() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the records that --quick takes."""
    return records(QUICK_CLIENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.Experiment):
    """Describe what is run."""

    corruptions: Sequence[str] = ("label-0.1",)
    epsilon: float = 5.0
    seeds: int = 1
    is_quick: bool = False

    def __post_init__(self) -> None:
        runner.require_known("--corruption", self.corruptions, NAMES)
        if not self.rounds:
            raise ConfigError(f"--epsilon: expected enough for a round, found {self.epsilon}")

    @property
    def n_clients(self) -> int:
        """Return the number of clients, of one record each."""
        return QUICK_CLIENTS if self.is_quick else N_CLIENTS

    @property
    def rounds(self) -> int:
        """Return how many rounds the paper's setting allows, whose one server hides the draw."""
        if self.is_quick:
            return EVALUATE_EVERY
        return rounds_within(functools.partial(proved_epsilon, PTR, N_CLIENTS, BATCH / N_CLIENTS), self.epsilon)

    @property
    def settings(self) -> tuple[Corruption, ...]:
        """Return the corruptions."""
        return tuple(corruption for corruption in CORRUPTIONS if corruption.name in self.corruptions)

    def case(self, corruption: Corruption) -> Case:
        """Return one training."""
        n, sigma, tau, b, failure = self.n_clients, *(PTR.parameters[name] for name in _PARAMETERS)
        rate = BATCH / N_CLIENTS if not self.is_quick else 0.5
        return Case(
            name=corruption.name,
            labels={"corruption": corruption.of, "share": corruption.share},
            config={
                "task": {
                    "name": f"ptr-{corruption.name}",
                    "algorithm": "tsgd-ptr",
                    "clients": n,
                    "rounds": self.rounds,
                    "client_rate": rate,
                    "record_rate": 1.0,
                    "record_clip": 1.0,
                    "client_clip": PTR.parameters["clip"],
                    "noise_multiplier": sigma,
                    "trim_tau": tau,
                    "trim_noise": b,
                    "trim_failure": failure,
                    "local_rate": 1.0,  # an update is the gradient of the one record, clipped to R
                    "learning_rate": LEARNING_RATE,
                    "delta": DELTA,
                    "model": MODEL,
                    "gate": "native",
                    "registration_timeout_s": REGISTRATION_TIMEOUT_S,
                },
                "client": {
                    "records": f"{__name__}:{'sixty' if self.is_quick else 'ten_thousand'}",
                    "holdout": HOLDOUT,
                    "device": self.device,
                },
                "simulation": {
                    "algorithm": "deployed",
                    "evaluate_every": EVALUATE_EVERY,
                    **corruption.attack(n),
                },
            },
            rounds_per_epoch=1 / rate,
        )


_PARAMETERS: Final = ("noise_multiplier", "tau", "laplace_scale", "test_failure")


def quick(_given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    return {"is_quick": True}


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    cases = [experiment.case(corruption) for corruption in experiment.settings]
    outcomes, report = runner.reported(
        "ptr-clients",
        experiment,
        cases,
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "clients": experiment.n_clients,
            "rounds": experiment.rounds,
            "model": MODEL,
            "cases": [
                _of_case(experiment, corruption, outcome)
                for corruption, outcome in zip(experiment.settings, outcomes, strict=True)
            ],
            "evaluations": runner.what_is_reported(outcomes),
        },
        paragraph=paragraph,
    )
    runner.save_figure(lambda axes: _draw(axes[0], experiment, outcomes), folder / "ptr-clients.png", panels=1)
    return report


def _of_case(experiment: Experiment, corruption: Corruption, outcome: Outcome) -> dict[str, Any]:
    reported = [[accuracy for accuracy, _ in of_seed] for of_seed in outcome.reported()]
    printed = corruption.paper.get(experiment.epsilon)
    return {
        **outcome.case.labels,
        "accuracy": runner.spread([sum(of_seed) / len(of_seed) for of_seed in reported]),
        "paper": None if printed is None else printed[1],
        "epsilon_one_server": runner.largest_epsilon(outcome),
        "rejected": outcome.over_seeds("rejected"),
        "ms_per_round": outcome.ms_per_round,
        "diverged": outcome.diverged,
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    found = "; ".join(
        f"{case['corruption']} {case['share']:g}: {case['accuracy']['mean']:.3f}"
        + ("" if case["paper"] is None else f" (the paper, of 60,000 records: {case['paper']:.3f})")
        for case in report["cases"]
    )
    return (
        f"{PTR.words} by two servers, {report['clients']} clients of one record of MNIST, model {report['model']}, "
        f"{report['rounds']} rounds, which is what a server that hides its batches could prove at an epsilon of "
        f"{report['epsilon']:g}, {report['seeds']} training(s). Accuracy, {report['evaluations']}: {found}. Servers "
        "know who was drawn, so nothing useful is proved for a client here."
    )


def _draw(axes: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> None:
    """Draw accuracy by pass, and at its end what the paper has, whose records are six times as many."""
    for colour, corruption, outcome in zip(runner.COLOURS, experiment.settings, outcomes, strict=False):
        label = f"{corruption.of}, {corruption.share:.0%}"
        runner.draw_curves(axes, outcome.rows, "accuracy", colour=colour, label=label)
        if (printed := corruption.paper.get(experiment.epsilon)) is not None and outcome.rows:
            end = max(row["epoch"] for row in outcome.rows)
            runner.mark_paper(axes, [(end, printed[1])], colour=colour, label=f"{label}, the paper")
    axes.set(xlabel="passes over the records", ylabel="test accuracy", title=f"{PTR.words}, two servers")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    columns = ("corruption", "share", "accuracy", "paper", "ε one server", "s a round")
    table = titled("PTR, Table 1, on two servers", *columns, words=("corruption",))
    for case in report["cases"]:
        table.add_row(
            case["corruption"],
            f"{case['share']:g}",
            f"{case['accuracy']['mean']:.4f}",
            "-" if case["paper"] is None else f"{case['paper']:.4f}",
            at_most(case["epsilon_one_server"]),
            f"{case['ms_per_round'] / 1000:.2f}",
        )
    runner.print_result(console, table, report)
