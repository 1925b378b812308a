"""`precad experiment correlated-noise`: UserDP-FedAvg whose noise is correlated over rounds, beside independent noise.

1,000 clients with 60 images each of MNIST. The joint coin deals them ten turns, so 100 of them are in a round and each
is in every tenth. The model is linear. Epsilon is a whole client's against one server and any other clients, of its 20
turns in 200 rounds. It is equal for both kinds of noise, and .45 of that in a third case. The simulation is a
deployment's round, with the noise of both servers.

Each kind of noise has a learning rate of its own, since less noise bears longer steps. Seed 0 chose both, so results
are of other seeds only with `--first-seed 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rich.console import Console
from torch import nn

from precad.deploy.shown.figures import at_most
from precad.lab.papers import runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

ROUNDS, QUICK_ROUNDS, EVALUATE_EVERY = 200, 20, 20
N_CLIENTS, TURNS = 1000, 10
UPDATE_CLIP: Final = 0.3
CLIENT_DELTA: Final = 5e-4
"""1000^-1.1, as other statements about a client of 1,000 here."""
LOCAL_BATCH, LOCAL_RATE = 60, 1.0
"""One step of all that a client has, long enough that C cuts most updates."""


@dataclass(frozen=True, slots=True)
class Noise:
    """One kind of noise, and the rate that goes with it."""

    words: str
    bands: int
    learning_rate: float
    share: float = 1.0
    """Share of the experiment's epsilon that it has."""


def softmax() -> nn.Module:
    """Return the model, (n, 1, 28, 28) -> (n, 10): one linear layer, of 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


NOISES: Final = MappingProxyType(
    {
        "independent": Noise("independent", 1, 0.5),
        "correlated": Noise("correlated over 10 rounds", TURNS, 1.0),
        "correlated-less": Noise("correlated, .45 of epsilon", TURNS, 0.5, share=0.45),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    epsilon: float = 2.0
    rounds: int = ROUNDS
    model: str = f"{__name__}:softmax"

    def case(self, name: str) -> Case:
        """Return the training with one kind of noise."""
        noise = NOISES[name]
        return Case(
            name=name,
            labels={"noise": noise.words},
            config={
                "task": {
                    "name": name,
                    "algorithm": "user-dp-fedavg",
                    "clients": N_CLIENTS,
                    "rounds": self.rounds,
                    "client_rate": 1.0,
                    "record_rate": 1.0,
                    "record_clip": 1.0,
                    "client_clip": UPDATE_CLIP,
                    "target_epsilon": noise.share * self.epsilon,
                    "min_separation": TURNS,
                    "noise_bands": noise.bands,
                    "learning_rate": noise.learning_rate,
                    "local_batch": LOCAL_BATCH,
                    "local_rate": LOCAL_RATE,
                    "delta": CLIENT_DELTA,
                    "model": self.model,
                },
                "client": {"dataset": self.dataset, "device": self.device},
                "simulation": {"algorithm": "deployed", "evaluate_every": min(EVALUATE_EVERY, self.rounds)},
            },
            rounds_per_epoch=TURNS,
        )


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    return runner.reported(
        "correlated-noise",
        experiment,
        [experiment.case(name) for name in NOISES],
        folder,
        console,
        workers,
        found=lambda outcomes: {"cases": [_of_case(outcome) for outcome in outcomes]},
        paragraph=paragraph,
        draw=lambda outcomes, _: runner.save_figure(
            lambda axes: _draw(axes[0], outcomes, experiment), folder / "correlated-noise.png", panels=1
        ),
    )


def _of_case(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.case.labels,
        "learning_rate": outcome.case.config["task"]["learning_rate"],
        "dim": outcome.dim,
        "accuracy": outcome.over_seeds("accuracy"),
        "epsilon": runner.largest_epsilon(outcome),
        "diverged": outcome.diverged,
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out."""
    found = [
        f"{case['noise']} {case['accuracy']['mean']:.4f} (epsilon {at_most(case['epsilon'])})"
        for case in report["cases"]
        if case["accuracy"]["mean"] is not None
    ]
    return (
        f"Accuracy of UserDP-FedAvg on {report['dataset']}, epsilon of a client against one server, "
        f"{report['rounds']} rounds, {report['seeds']} seed(s), final models: {'; '.join(found)}."
    )


def _draw(axes: Any, outcomes: Sequence[Outcome], experiment: Experiment) -> None:
    for colour, outcome in zip(runner.COLOURS, outcomes, strict=False):
        runner.draw_curves(axes, outcome.rows, "accuracy", colour=colour, label=outcome.case.labels["noise"])
    axes.set(xlabel="epoch", ylabel="test accuracy", title=f"a client's ε = {experiment.epsilon:g} or less, one server")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "noise": itemgetter("noise"),
        "learning rate": lambda case: f"{case['learning_rate']:g}",
        "d": lambda case: str(case["dim"]),
        "accuracy": lambda case: runner.written(case["accuracy"]["mean"], "{:.4f}".format),
        "least": lambda case: runner.written(case["accuracy"]["min"], "{:.4f}".format),
        "most": lambda case: runner.written(case["accuracy"]["max"], "{:.4f}".format),
        "epsilon": lambda case: runner.written(case["epsilon"], at_most),
    }
    runner.print_table(console, report, "Correlated noise", report["cases"], columns, words=("noise",))
