"""The classes that Xie et al. tell apart, and by which model; and a public start of its training.

The classes are digits 0 and 1, airplanes and birds, or tweets, two of each, or all ten digits of the appendix. A public
start is a model trained without privacy on records that an experiment does not train on.

Xie et al. fine-tune models from elsewhere, which are not among our data. On CIFAR-10 it is one trained on CIFAR-100, on
tweets one with pretrained GloVe embeddings. What stands for them is trained here, on

    cifar10             the eight other classes of CIFAR-10: no airplane and no bird is among its records. Its images
                        are nearer to the private ones than CIFAR-100's are, fewer, and of fewer classes
    sentiment140-50k    negative and positive tweets to American airlines, another collection, labelled by people: far
                        fewer words than GloVe's, and the whole network, where GloVe is its first layer

so that no guarantee is about any of them. The training is a run of `precad simulate` like any other. It is FedAvg of
two clients who hold half of these records each; nobody attacks and nothing is clipped. All layers of the result but the
last are kept; the last is new, drawn from `HEAD_SEED`. Beside an experiment's folders it leaves

public-start/          that run, continued like the others
public-start.npy       the model, as `simulation.initial_model` takes it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.models import networks
from precad.clients.records import Records
from precad.clients.records.records import N_CLASSES
from precad.clients.training import evaluation
from precad.deploy.errors import ConfigError
from precad.lab.papers import runner
from precad.lab.papers.runner import Case
from precad.lab.simulation.workers import Workers


@dataclass(frozen=True, slots=True)
class Classes:
    """Classes of a data set that are told apart."""

    labels: tuple[int, ...]
    """In ascending order."""
    words: str
    model: str
    """With an output for each."""

    def indices(self, records: Records) -> NDArray[np.int64]:
        """Return the place of each record's label among the classes, (n,)."""
        return np.searchsorted(self.labels, records.labels).astype(np.int64)

    def exchanged(self, records: Records) -> Records:
        """Return the records with the other of two classes for each: what an attacker wants who aims at a bad model."""
        first, second = self.labels
        return Records(records.features, np.where(records.labels == first, second, first).astype(records.labels.dtype))

    def mean_confidences(self, folder: Path, seeds: int, test: Records) -> NDArray[np.float64]:
        """Return the mean confidences over the final models of a case's seeds, which lie in its folder.

        They are (n, classes).
        """
        total = np.zeros((len(test), len(self.labels)))
        for seed in range(seeds):
            with np.load(folder / f"seed-{seed}.npz", allow_pickle=False) as saved:
                total += evaluation.confidences(saved["parameters"], self.model, test)[:, list(self.labels)]
        return total / seeds


TWO, TEN = 2, N_CLASSES
"""How many classes may be told apart."""
DIGITS: Final = Classes((0, 1), "classes 0 and 1", "cnn-binary")
TEN_DIGITS: Final = Classes(tuple(range(TEN)), "ten classes", "cnn")
AIRPLANES_AND_BIRDS: Final = Classes((0, 2), "airplanes and birds", "cnn-pooled-binary")
TWEETS: Final = Classes((0, 1), "negative and positive tweets", "lstm-binary")
PAIRS: Final[Mapping[str, Classes]] = {"mnist": DIGITS, "cifar10": AIRPLANES_AND_BIRDS, "sentiment140-50k": TWEETS}


def classes_of(dataset: str, n_classes: int = TWO) -> Classes:
    """Return the classes of one of the paper's data sets; what has the shape of digits is taken for digits."""
    return PAIRS.get(dataset, DIGITS) if n_classes == TWO else TEN_DIGITS


def require_classes(n_classes: int, dataset: str) -> None:
    """Raise ConfigError unless so many classes of a data set can be told apart: ten of digits alone."""
    known = (TWO, TEN) if classes_of(dataset) is DIGITS else (TWO,)
    if n_classes not in known:
        raise ConfigError(f"--classes: expected {' or '.join(map(str, known))} on {dataset}, found {n_classes}")


BATCH: Final = 64
HEAD_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Describe what is trained without privacy, and on what."""

    dataset: str
    classes: tuple[int, ...]
    model: str
    """The experiment's with an output for each class."""
    rounds: int
    steps: int
    """Steps of a client in a round: a pass over its half, or a little more."""
    rate: float
    weight_decay: float
    words: str
    """Which records, in a sentence."""
    papers: str
    """The paper's model in its place, in words."""


RECIPES: Final[Mapping[str, Recipe]] = {
    "cifar10": Recipe(
        dataset="cifar10",
        classes=tuple(label for label in range(N_CLASSES) if label not in AIRPLANES_AND_BIRDS.labels),
        model="cnn-pooled",
        rounds=5,
        steps=313,
        rate=0.05,
        weight_decay=0.0005,
        words="the other eight classes of CIFAR-10",
        papers="the paper's was trained on CIFAR-100",
    ),
    "sentiment140-50k": Recipe(
        dataset="airline-tweets",
        classes=(0, 2),
        model="lstm",
        rounds=6,
        steps=91,
        rate=0.5,
        weight_decay=0.0,
        words="negative and positive tweets to American airlines",
        papers="the paper's has pretrained GloVe embeddings, which are not among our data",
    ),
}
"""By the experiment's data set; digits start from none."""


@dataclass(frozen=True, slots=True)
class PublicStart:
    """Where training starts from, and what it came from."""

    path: Path
    recipe: Recipe | None = None
    """None for a file that somebody gave."""
    accuracy: float | None = None
    """Accuracy of the public model on the test records of its own classes."""

    @property
    def words(self) -> str:
        """Return a sentence."""
        if self.recipe is None:
            return f"Trainings start from a public model that was given ({self.path.name})."
        return (
            f"Trainings start from a public model, trained without privacy on {self.recipe.words} (accuracy "
            f"{self.accuracy:.3f} among these) with a new last layer; {self.recipe.papers}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return it for a report."""
        return {"file": self.path.name, "accuracy_on_its_own_classes": self.accuracy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting(runner.DatasetExperiment):
    """An experiment that may begin with a public model."""

    public_start: Path | None = None
    """The public model that trainings start from, in place of a model that is drawn."""


E = TypeVar("E", bound=Starting)


def started(
    experiment: E, folder: Path, console: Console, workers: Workers | None = None
) -> tuple[PublicStart | None, E]:
    """Return the public model that an experiment's trainings start from, trained by its data set's recipe, if there is
    one, unless a model is given.

    Raises: ConfigError, DataError.
    """
    if experiment.public_start is not None:
        return PublicStart(experiment.public_start), experiment
    if experiment.dataset not in RECIPES:
        return None, experiment
    start = _trained(experiment, RECIPES[experiment.dataset], folder, console, workers)
    return start, replace(experiment, public_start=start.path)


def case_of(recipe: Recipe, device: str) -> Case:
    """Return the training by a recipe."""
    task = {
        "name": "public-start",
        "clients": 2,
        "rounds": recipe.rounds,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 1.0,  # of no use: nothing is clipped
        "client_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
        "delta": 0.0029,
        "model": recipe.model,
    }
    simulation = {
        "algorithm": "fedavg",
        "local_steps": recipe.steps,
        "local_batch": BATCH,
        "local_rate": recipe.rate,
        "local_momentum": 0.9,
        "local_weight_decay": recipe.weight_decay,
        "evaluate_every": 1,
    }
    client = {"dataset": recipe.dataset, "classes": list(recipe.classes), "device": device}
    config: Mapping[str, Any] = {"task": task, "client": client, "simulation": simulation}
    return Case(name="public-start", labels={"case": "public-start"}, config=config, rounds_per_epoch=1)


def _trained(
    experiment: Starting, recipe: Recipe, folder: Path, console: Console, workers: Workers | None
) -> PublicStart:
    """Train it unless the folder has it."""
    case = case_of(recipe, experiment.device)
    (outcome,) = runner.run_cases([case], runner.Experiment(seeds=1), folder, console, workers)
    with np.load(folder / case.name / "seed-0.npz", allow_pickle=False) as saved:
        start = with_new_head(saved["parameters"], classes_of(experiment.dataset).model)
    path = folder / "public-start.npy"
    np.save(path, start)
    return PublicStart(path, recipe, outcome.runs[0]["accuracy"])


def with_new_head(parameters: NDArray[np.float32], model: str) -> NDArray[np.float32]:
    """Return all layers of a trained model but the last, which is `model`'s own as `HEAD_SEED` draws it; flat, (d,)."""
    start = networks.initial_parameters(model, seed=HEAD_SEED)
    head = sum(parameter.numel() for parameter in list(networks.build(model).parameters())[-2:])
    kept = len(start) - head
    start[:kept] = parameters[:kept]
    return start
