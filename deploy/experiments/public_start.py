"""A public start for CIFAR-10: a model trained without privacy on the classes that an experiment does not train on.

Xie et al. fine-tune a model that was trained on CIFAR-100, which is none of our data sets. Here it is trained on the
eight other classes of CIFAR-10: no airplane and no bird is among its records, so that no guarantee is about any of
them. Its images are nearer to the private ones than CIFAR-100's are, fewer, and of fewer classes.

The training is a run of `precad simulate` like any other: FedAvg of two clients who hold half of these records each, a
pass over them in a round, nobody attacks and nothing is clipped. Of the result the convolutions are kept; the last
layer is new, drawn from `HEAD_SEED`. Beside an experiment's folders it leaves

public-start/          that run, gone on with like the others
public-start.npy       the model, as `simulation.initial_model` takes it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from clients import models
from clients.datasets.records import N_CLASSES
from deploy.experiments import runner
from deploy.experiments.runner import Case
from deploy.experiments.two_classes import Pair, pair_of
from deploy.workers import Workers

ROUNDS: Final = 5
BATCH: Final = 64
STEPS: Final = 313
"""A pass over 20 000 records."""
WHOLE: Final = "cnn-pooled"
"""What is trained: the experiment's model with an output for each class."""
HEAD_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class PublicStart:
    """Where training starts from, and what it came from."""

    path: Path
    accuracy: float | None = None
    """Of the public model on the test records of its own classes; None for a file that somebody gave."""

    @property
    def words(self) -> str:
        """A sentence."""
        if self.accuracy is None:
            return f"Trainings start from a public model that was given ({self.path.name})."
        return (
            "Trainings start from a public model, trained without privacy on the other eight classes of CIFAR-10 "
            f"(accuracy {self.accuracy:.3f} among these) with a new last layer; the paper's was trained on CIFAR-100."
        )

    def to_json(self) -> dict[str, Any]:
        """For a report."""
        return {"file": str(self.path), "accuracy_on_its_own_classes": self.accuracy}


class Starting(Protocol):
    """What may begin with a public model."""

    @property
    def dataset(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def public_start(self) -> Path | None: ...
    def starting_from(self, model: Path) -> Self: ...


E = TypeVar("E", bound=Starting)


def started(
    experiment: E, folder: Path, console: Console, workers: Workers | None = None
) -> tuple[PublicStart | None, E]:
    """The public model that CIFAR-10's trainings start from, trained unless it is given; digits start from none.

    Raises: ConfigError, DataError.
    """
    if experiment.public_start is not None:
        return PublicStart(experiment.public_start), experiment
    if experiment.dataset != "cifar10":
        return None, experiment
    start = trained(
        pair_of(experiment.dataset), device=experiment.device, folder=folder, console=console, workers=workers
    )
    return start, experiment.starting_from(start.path)


def case_of(private: Pair, device: str) -> Case:
    """The training on all classes of CIFAR-10 but the private ones."""
    task = {
        "name": "public-start",
        "clients": 2,
        "rounds": ROUNDS,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 1.0,  # of no use: nothing is clipped
        "client_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
        "delta": 0.0029,
        "model": WHOLE,
    }
    simulation = {
        "algorithm": "fedavg",
        "local_steps": STEPS,
        "local_batch": BATCH,
        "local_rate": 0.05,
        "local_momentum": 0.9,
        "local_weight_decay": 0.0005,
        "evaluate_every": 1,
    }
    others = [label for label in range(N_CLASSES) if label not in private.classes]
    client = {"dataset": "cifar10", "classes": others, "device": device}
    config: Mapping[str, Any] = {"task": task, "client": client, "simulation": simulation}
    return Case(name="public-start", labels={"case": "public-start"}, config=config, rounds_per_epoch=1)


def trained(
    private: Pair, *, device: str, folder: Path, console: Console, workers: Workers | None = None
) -> PublicStart:
    """Trains it unless the folder has it. Raises ConfigError, DataError."""
    case = case_of(private, device)
    (outcome,) = runner.run_cases([case], seeds=1, folder=folder, console=console, workers=workers)
    with np.load(folder / case.name / "seed-0.npz", allow_pickle=False) as saved:
        start = with_new_head(saved["parameters"], private.model)
    path = folder / "public-start.npy"
    np.save(path, start)
    return PublicStart(path, accuracy=outcome.runs[0]["accuracy"])


def with_new_head(parameters: NDArray[np.float32], model: str) -> NDArray[np.float32]:
    """All layers of a trained `WHOLE` but the last, which is `model`'s own as `HEAD_SEED` draws it; flat, (d,)."""
    start = models.initial_parameters(model, seed=HEAD_SEED)
    head = sum(parameter.numel() for parameter in list(models.build(model).parameters())[-2:])
    kept = len(start) - head
    start[:kept] = parameters[:kept]
    return start
