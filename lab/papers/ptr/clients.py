"""`precad experiment ptr-clients`: TSGD + PTR of the PTR paper's Table 1 by PRECAD's two servers, one record a client.

10,000 clients hold a record of MNIST each, and 256 of them are in a round in expectation. Both servers compute the test
and the trimmed sum on shares (`task.algorithm = "tsgd-ptr"`), in a simulation or as processes (`--deployed`). The paper
has 60,000 records on one server, which draws the batches and hides them. Here servers know who was drawn. What is
proved for a client is therefore no useful bound. There are as many rounds as the paper's setting, with as many records,
would allow at the epsilon. The parameters are those of the paper's B.1.3; each server adds Gaussian noise of sigma R
and Laplace noise b of its own.

Beside it stands the paper's TSGD + Gaussian at equal epsilon, with the same records: one server, always simulated.

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.records.holdout import is_kept_aside
from precad.clients.records.source import DataSource
from precad.deploy.errors import ConfigError
from precad.deploy.shown.figures import at_most
from precad.deploy.shown.tables import titled
from precad.lab.papers import runner
from precad.lab.papers.ptr.mnist import DELTA, proved_epsilon, rounds_within
from precad.lab.papers.ptr.settings import CORRUPTIONS, GAUSSIAN, PTR, PTR_PARAMETERS, TRAININGS, Corruption, Method
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

OF_MNIST: Final = TRAININGS["mnist"]
N_CLIENTS, QUICK_CLIENTS, EVALUATE_EVERY = 10_000, 60, 10
REGISTRATION_TIMEOUT_S: Final = 3600.0
"""How long the run waits for its clients' twenty thousand connections, which take minutes of processor time."""
HOLDOUT: Final = 0.2
"""Share of the records that the accuracy is measured on: a quarter as many as clients have."""
IS_AHEAD: Final = "TSGD + PTR is ahead of TSGD + Gaussian at equal epsilon"
NAMES: Final = tuple(corruption.name for corruption in CORRUPTIONS)


def records(n_clients: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first records of MNIST of which so many are no test records, and a quarter as many are."""
    train = DataSource(dataset="mnist").load(side=28).train
    some = train.take(np.arange(min(len(train), 2 * n_clients + 1000)))
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
        if self.mode == "proved":
            raise ConfigError("--mode: expected one with a dealer, as sums are trimmed on shares, found 'proved'")
        if not self.rounds:
            raise ConfigError(f"--epsilon: expected enough for a round, found {self.epsilon}")

    @property
    def n_clients(self) -> int:
        """Return the number of clients, of one record each."""
        return QUICK_CLIENTS if self.is_quick else N_CLIENTS

    @property
    def rounds(self) -> int:
        """Return how many rounds of TSGD + PTR the paper's setting allows, whose one server hides the draw."""
        return self.rounds_of(PTR)

    def rounds_of(self, method: Method) -> int:
        """Return how many rounds of a method cost at most the epsilon."""
        if self.is_quick:
            return EVALUATE_EVERY
        return rounds_within(
            functools.partial(proved_epsilon, method, N_CLIENTS, OF_MNIST.batch / N_CLIENTS), self.epsilon
        )

    @property
    def client_rate(self) -> float:
        """Return the probability with which a client is drawn for a round."""
        return 0.5 if self.is_quick else OF_MNIST.batch / N_CLIENTS

    @property
    def settings(self) -> tuple[Corruption, ...]:
        """Return the corruptions."""
        return tuple(corruption for corruption in CORRUPTIONS if corruption.name in self.corruptions)

    def case(self, corruption: Corruption) -> Case:
        """Return a training by two servers."""
        sigma, tau, b, failure = (PTR.parameters[name] for name in PTR_PARAMETERS)
        task = {
            "algorithm": "tsgd-ptr",
            "rounds": self.rounds,
            "client_clip": PTR.parameters["clip"],
            "noise_multiplier": sigma,
            "trim_tau": tau,
            "trim_noise": b,
            "trim_failure": failure,
            "local_rate": 1.0,  # an update is the gradient of the one record, clipped to R
            "gate": "native",
            "registration_timeout_s": REGISTRATION_TIMEOUT_S,
        }
        return self._training(corruption, corruption.name, task, {"algorithm": "deployed"})

    def beside(self, corruption: Corruption) -> Case:
        """Return a training by the paper's one server, with TSGD + Gaussian."""
        task = {
            "rounds": self.rounds_of(GAUSSIAN),
            "client_clip": GAUSSIAN.parameters["clip"],
            "noise_multiplier": 1.0,  # of servers that are not here: the rule clips and adds the noise
        }
        enrolled = {"rate": self.client_rate, "n_enrolled": self.n_clients}
        simulation = {
            "algorithm": "non-private",
            "client_clipping": False,
            "aggregation": GAUSSIAN.rule.name,
            "aggregation_parameters": {**enrolled, **GAUSSIAN.parameters},
        }
        return self._training(corruption, f"{GAUSSIAN.name}-{corruption.name}", task, simulation)

    def _training(
        self, corruption: Corruption, name: str, task: Mapping[str, Any], simulation: Mapping[str, Any]
    ) -> Case:
        return Case(
            name=name,
            labels={"corruption": corruption.of, "share": corruption.share},
            config={
                "task": {
                    "name": f"ptr-{corruption.name}",
                    "clients": self.n_clients,
                    "client_rate": self.client_rate,
                    "record_rate": 1.0,
                    "record_clip": 1.0,
                    "learning_rate": OF_MNIST.learning_rate,
                    "delta": DELTA,
                    "model": OF_MNIST.model,
                    **task,
                },
                "client": {
                    "records": f"{__name__}:{'sixty' if self.is_quick else 'ten_thousand'}",
                    "holdout": HOLDOUT,
                    "device": self.device,
                },
                "simulation": {
                    "evaluate_every": EVALUATE_EVERY,
                    **simulation,
                    **corruption.attack(self.n_clients),
                },
            },
            rounds_per_epoch=1 / self.client_rate,
        )


def quick(_given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    return {"is_quick": True}


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    cases = [experiment.case(corruption) for corruption in experiment.settings]
    runner.require_trainable(cases, experiment)
    by_gaussian = runner.run_cases(
        [experiment.beside(corruption) for corruption in experiment.settings],
        replace(experiment, deployed=False, mode=None),
        folder,
        console,
        workers,
    )
    return runner.reported(
        "ptr-clients",
        experiment,
        cases,
        folder,
        console,
        workers,
        found=lambda outcomes: _found(experiment, outcomes, by_gaussian),
        paragraph=paragraph,
        draw=lambda outcomes, _: runner.save_figure(
            lambda axes: _draw(axes[0], experiment, outcomes), folder / "ptr-clients.png", panels=1
        ),
    )


def _found(experiment: Experiment, by_ptr: Sequence[Outcome], by_gaussian: Sequence[Outcome]) -> dict[str, Any]:
    cases = [
        _of_case(experiment, corruption, ptr, gaussian)
        for corruption, ptr, gaussian in zip(experiment.settings, by_ptr, by_gaussian, strict=True)
    ]
    return {
        "clients": experiment.n_clients,
        "rounds": experiment.rounds,
        "rounds_gaussian": experiment.rounds_of(GAUSSIAN),
        "model": OF_MNIST.model,
        "cases": cases,
        "statements": {IS_AHEAD: all(case["accuracy"]["mean"] > case["gaussian"]["mean"] for case in cases)},
        "evaluations": runner.what_is_reported(by_ptr),
        "evaluations_gaussian": runner.what_is_reported(by_gaussian),
    }


def _of_case(experiment: Experiment, corruption: Corruption, ptr: Outcome, gaussian: Outcome) -> dict[str, Any]:
    of_gaussian, of_ptr = corruption.mnist.get(experiment.epsilon, (None, None))
    return {
        **ptr.case.labels,
        "accuracy": _accuracy(ptr),
        "paper": of_ptr,
        "gaussian": _accuracy(gaussian),
        "paper_gaussian": of_gaussian,
        "epsilon_one_server": runner.largest_epsilon(ptr),
        "rejected": ptr.over_seeds("rejected"),
        "ms_per_round": ptr.ms_per_round,
        "diverged": ptr.diverged + gaussian.diverged,
    }


def _accuracy(outcome: Outcome) -> dict[str, float | None]:
    reported = [[accuracy for accuracy, _ in of_seed] for of_seed in outcome.reported()]
    return runner.spread([sum(of_seed) / len(of_seed) for of_seed in reported])


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    found = "; ".join(
        f"{case['corruption']} {case['share']:g}: {case['accuracy']['mean']:.3f}{_printed(case['paper'])}, by Gaussian "
        f"noise {case['gaussian']['mean']:.3f}{_printed(case['paper_gaussian'])}"
        for case in report["cases"]
    )
    return (
        f"{PTR.words} by two servers, {report['clients']} clients of one record of MNIST, model {report['model']}, "
        f"{report['rounds']} rounds, which is what a server that hides its batches could prove at an epsilon of "
        f"{report['epsilon']:g}, {report['seeds']} training(s). {GAUSSIAN.words} by one such server has "
        f"{report['rounds_gaussian']} rounds, simulated. Accuracy, {report['evaluations']}, of the Gaussian "
        f"{report['evaluations_gaussian']}: {found}. The paper has 60,000 records. "
        "Servers know who was drawn, so nothing useful is proved for a client here."
    )


def _printed(paper: float | None) -> str:
    return "" if paper is None else f" (the paper: {paper:.3f})"


def _draw(axes: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> None:
    """Draw accuracy by pass, and at its end what the paper has, whose records are six times as many."""
    for colour, corruption, outcome in zip(runner.COLOURS, experiment.settings, outcomes, strict=False):
        label = f"{corruption.of}, {corruption.share:.0%}"
        runner.draw_curves(axes, outcome.rows, "accuracy", colour=colour, label=label)
        if (printed := corruption.mnist.get(experiment.epsilon)) is not None and outcome.rows:
            end = max(row["epoch"] for row in outcome.rows)
            runner.mark_paper(axes, [(end, printed[1])], colour=colour, label=f"{label}, the paper")
    axes.set(xlabel="passes over the records", ylabel="test accuracy", title=f"{PTR.words}, two servers")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    columns = ("corruption", "share", "accuracy", "paper", "Gaussian", "paper", "ε one server", "s a round")
    table = titled("PTR, Table 1, on two servers", *columns, words=("corruption",))
    for case in report["cases"]:
        table.add_row(
            case["corruption"],
            f"{case['share']:g}",
            f"{case['accuracy']['mean']:.4f}",
            "-" if case["paper"] is None else f"{case['paper']:.4f}",
            f"{case['gaussian']['mean']:.4f}",
            "-" if case["paper_gaussian"] is None else f"{case['paper_gaussian']:.4f}",
            at_most(case["epsilon_one_server"]),
            f"{case['ms_per_round'] / 1000:.2f}",
        )
    runner.print_result(console, table, report)
