"""`precad experiment convex-sets`: K backdoor attackers of 100 against one ball, and against smaller convex sets.

The setting is that of PRECAD's Figure 4 with the pixel pattern and the same noise, so every defence has the same
epsilon. C is 100 and eta is 0.3 unless asked otherwise. With C = 20 and eta = 0.1 the ball alone leaves nothing to an
attacker who projects once. Attackers may wait until the model has learnt its task: `start` is that model. They stay
within the set that the servers check, so none is rejected. They do it in two ways, all of a round alike:

    projects once        the whole malicious update of `pixel-backdoor`, projected onto the set
    optimises inside     `optimised-backdoor`: projected gradient steps from the model that it was sent

One training for each of these, one without attackers, and for each seed of

    the ball                   ||x|| <= C alone
    equal layers               each of the L layers within C / sqrt(L)
    layers by size             each layer of d_l parameters within C sqrt(d_l / d)
    a half-space               <x, g> >= t beside C: g is minus the first model's gradient on public records, t almost 0
    layers and a half-space    layers by size, and of g the part in the layer where it is longest

Backdoor accuracy is counted as in `precad.lab.papers.precad.backdoor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.config import DatasetName
from precad.clients.gradients.layers import require_layer_sizes
from precad.clients.models import networks
from precad.clients.records import DataSource, model_inputs
from precad.deploy.errors import ConfigError
from precad.lab.papers import backdoors, runner
from precad.lab.papers.runner import Case
from precad.lab.simulation.workers import Workers

ROUNDS, QUICK_ROUNDS = 5000, 600
ATTACKERS: Final = (5, 10)
CLIP: Final = 100.0
RATE: Final = 0.3
ATTACKS: Final = {"pixel-backdoor": "projects once", "optimised-backdoor": "optimises inside"}
"""Kinds, and what the report calls these."""
SHARES: Final = {"pixel-backdoor": 1.0, "optimised-backdoor": 0.1}
"""Parts of their records that attackers stamp. The optimiser's gradients are of all that it stamps, many a round."""
NO_ATTACK: Final = "no attacker"
N_CLIENTS: Final = 100
N_PUBLIC: Final = 1000
"""Records whose gradient is the direction. The first of the test half, which no client has; accuracies count them."""
_PUBLIC_IN_WORDS: Final = (
    f" A half-space's direction is a gradient on the first {N_PUBLIC} test records, which the accuracies count too."
)
_LENGTH: Final = 2.0**14
"""Euclidean length of the direction's integers: their rounding turns it by less than a hundredth."""

TaskFields = Callable[["Experiment", Path], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Defence:
    """A set that the servers check."""

    name: str
    words: str
    fields: TaskFields
    """Fields of the task beside C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    attackers: Sequence[int] = ATTACKERS
    defences: Sequence[str] = ()
    """Names of `DEFENCES`; none is all."""
    sigma: float = 1.0
    clip: float = CLIP
    """C."""
    rate: float = RATE
    """eta."""
    rounds: int = ROUNDS
    model: str = "cnn-standardised"
    start: Path | None = None
    """A `.npy` file: the model that all begin with, in place of the initial one."""

    def __post_init__(self) -> None:
        runner.require_known("--defence", self.defences, [defence.name for defence in DEFENCES])
        if self.mode == "proved" and {*self.defences} != {"ball"}:
            raise ConfigError("--mode: expected one with a dealer for sets other than the ball, found 'proved'")
        runner.require_positive("--clip", self.clip)
        runner.require_positive("--rate", self.rate)

    @property
    def layer_sizes(self) -> list[int]:
        """Return the number of parameters of each of the model's layers."""
        return require_layer_sizes(networks.build(self.model), "model")

    def cases(self, folder: Path) -> list[Case]:
        """Return each defence without attackers, then against each number of each kind. The folder takes files of
        directions."""
        chosen = [defence for defence in DEFENCES if not self.defences or defence.name in self.defences]
        attacked = [(k, kind) for k in self.attackers for kind in ATTACKS]
        return [self._case(defence, k, kind, folder) for k, kind in [(0, None), *attacked] for defence in chosen]

    def _case(self, defence: Defence, n_attackers: int, kind: str | None, folder: Path) -> Case:
        simulation: dict[str, Any] = {"algorithm": "deployed"}
        if kind is not None:
            parameters = {"divides": False, "share": SHARES[kind]}
            simulation["attack"] = {"kind": kind, "clients": n_attackers, "parameters": parameters}
        if self.start is not None:
            simulation["initial_model"] = str(self.start)
        name = f"{defence.name}-alone" if kind is None else f"{defence.name}-{kind}-k{n_attackers}"
        config = runner.paper_config(
            name=name,
            rounds=self.rounds,
            clients=N_CLIENTS,
            sigma=self.sigma,
            clip=self.clip,
            dataset=self.dataset,
            model=self.model,
            device=self.device,
            simulation=simulation,
        )
        config["task"]["learning_rate"] = self.rate
        if further := defence.fields(self, folder):
            config["task"] |= {**further, "accept_weak_wire_form": True}
        words = f"{defence.words}, {NO_ATTACK if kind is None else ATTACKS[kind]}"
        return Case(name=name, labels={"defence": words, "attackers": n_attackers}, config=config)


def _equal_layers(experiment: Experiment, folder: Path) -> Mapping[str, Any]:
    n = len(experiment.layer_sizes)
    return {"layer_clips": [experiment.clip / math.sqrt(n)] * n}


def _layers_by_size(experiment: Experiment, folder: Path) -> Mapping[str, Any]:
    sizes = experiment.layer_sizes
    return {"layer_clips": [experiment.clip * math.sqrt(size / sum(sizes)) for size in sizes]}


def _half_space(experiment: Experiment, folder: Path) -> Mapping[str, Any]:
    return _beyond(as_integers(public_direction(experiment)), folder / "directions.npy")


def _layers_and_half_space(experiment: Experiment, folder: Path) -> Mapping[str, Any]:
    g = as_integers(longest_layer(public_direction(experiment), experiment.layer_sizes))
    return {**_layers_by_size(experiment, folder), **_beyond(g, folder / "directions-of-a-layer.npy")}


def _beyond(g: NDArray[np.int64], path: Path) -> Mapping[str, Any]:
    """Return the half-space along g, (d,), with the zero update just inside. Write the file of g."""
    if not path.exists():  # a file of the same bytes, whenever it is written
        np.save(path, g[None])
    least = np.abs(g).sum() + 1.0
    return {"half_spaces": [-1.01 * math.ldexp(least, -16)], "directions": str(path)}


def longest_layer(g: NDArray[np.float64], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return g, (d,), without all layers but the one where it is longest: beside bounds of layers, g lies in one."""
    ends = np.cumsum(sizes)
    layers = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    longest = max(layers, key=lambda layer: float(np.linalg.norm(g[layer])))
    found = np.zeros_like(g)
    found[longest] = g[longest]
    return found


def as_integers(g: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a direction, (d,), scaled and rounded."""
    return np.rint(g * (_LENGTH / np.linalg.norm(g))).astype(np.int64)


def public_direction(experiment: Experiment) -> NDArray[np.float64]:
    """Return minus the gradient of the model that training starts from on the public records, (d,)."""
    model = networks.build(experiment.model, seed=0)
    if experiment.start is not None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(_read(experiment.start, model)), model.parameters())
    test = DataSource(dataset=cast(DatasetName, experiment.dataset)).load().test
    public = test.take(np.arange(min(N_PUBLIC, len(test))))
    features, labels = model_inputs(torch.tensor(public.features), torch.float32), torch.tensor(public.labels)
    loss = torch.nn.functional.cross_entropy(model(features), labels.long())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return -torch.cat([gradient.flatten() for gradient in gradients]).double().numpy()


def _read(path: Path, model: torch.nn.Module) -> NDArray[np.float32]:
    """Return a model's parameters (d,). Raises ConfigError."""
    shape = (sum(it.numel() for it in model.parameters()),)
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise ConfigError(f"--start: expected a .npy file, found {path}") from None
    if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.shape != shape:
        raise ConfigError(f"--start: expected float32 of shape {shape}, found another array in {path}")
    if not np.isfinite(found).all():
        raise ConfigError(f"--start: expected finite numbers, found others in {path}")
    return found


DEFENCES: Final = (
    Defence("ball", "the ball", lambda experiment, folder: {}),
    Defence("equal-layers", "equal layers", _equal_layers),
    Defence("layers-by-size", "layers by size", _layers_by_size),
    Defence("half-space", "a half-space", _half_space),
    Defence("layers-and-half-space", "layers and a half-space", _layers_and_half_space),
)


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    folder.mkdir(parents=True, exist_ok=True)
    return runner.reported(
        "convex-sets",
        experiment,
        experiment.cases(folder),
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "attackers": list(experiment.attackers),
            "model": experiment.model,
            "layer_sizes": experiment.layer_sizes,
            "start": experiment.start and sha256(experiment.start.read_bytes()).hexdigest(),
            "cases": [backdoors.of_case(outcome, outcome.reported()) for outcome in outcomes],
            "evaluations": runner.what_is_reported(outcomes),
            "clean_accuracy_floor": backdoors.CLEAN_ACCURACY_FLOOR,
        },
        paragraph=paragraph,
        draw=lambda outcomes, _: backdoors.save_figures(
            folder / "convex-sets",
            outcomes,
            experiment.attackers,
            [f"{defence.words}, {words}" for words in (NO_ATTACK, *ATTACKS.values()) for defence in DEFENCES],
            N_CLIENTS,
            xlabel=backdoors.EPOCHS,
        ),
    )


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out."""
    return (
        f"pixel-backdoor on {report['dataset']}, model {report['model']} with layers of {report['layer_sizes']} "
        f"parameters, {N_CLIENTS} clients, C = {report['clip']:g}, eta = {report['rate']:g}, "
        f"sigma = {report['sigma']:g}, {report['rounds']} rounds{' from a model given' if report['start'] else ''}, "
        f"{report['seeds']} seed(s), one epsilon for all. Attackers project the malicious vector once, or "
        f"optimise inside. Backdoor accuracy and accuracy, {report['evaluations']}: "
        f"{backdoors.in_words(report)}. {backdoors.floor_in_words()}"
        f"{_PUBLIC_IN_WORDS if any('half-space' in case['defence'] for case in report['cases']) else ''}"
    )


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    rejected = {"rejected": lambda case: f"{case['rejected']['mean']:.0f}"}
    backdoors.print_cases(console, report, title="Backdoors against convex sets", extra=rejected)
