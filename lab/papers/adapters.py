"""`precad experiment adapters`: fine-tuning with private adapters, beside other trainings of the same cost in epsilon.

A small DistilBERT of `transformers`, made from a configuration, is trained publicly on airline tweets (negative or
positive). Clients fine-tune it on Sentiment140, by PRECAD. The same adapters are trained centrally by DP-SGD, and the
same base as a whole. The LSTM starts from nothing. Sigma is the same for all, so a record has the same epsilon. In
PRECAD it is against one server and all other clients. In central DP-SGD, whose server is trusted, it is against the
other clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from precad.clients.extras import extra
from precad.clients.models import networks
from precad.clients.models.adapters import lora
from precad.clients.models.fixing import fix
from precad.clients.models.safetensors_file import write_tensors
from precad.clients.records.tweets import LENGTH, VOCABULARY, airline_tweets, sentiment140_50k
from precad.clients.training import evaluation
from precad.deploy.errors import ConfigError
from precad.deploy.shown.figures import at_most
from precad.deploy.shown.tables import titled
from precad.lab.papers import central_opacus, runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.papers.two_servers import deployment_of
from precad.lab.simulation.workers import Workers

RANK, TARGETS = 8, ("q_lin", "v_lin", "pre_classifier", "classifier")
WIDTH, N_LAYERS, N_HEADS = 64, 2, 4
ROUNDS, QUICK_ROUNDS, CLIENTS, RECORD_RATE = 60, 5, 100, 0.02
PUBLIC_EPOCHS, PUBLIC_BATCH, PUBLIC_RATE = 4, 64, 1e-3


class TweetReader(nn.Module):
    """Let a model of `transformers` read tweets, in which token 0 stands for no word.

    Given four axes, the mask is taken as it is. At one of two axes the library looks, and a record would choose the
    others' kernels.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, 32) to (n, 2)."""
        n, n_places = tokens.shape
        is_read = (tokens != 0) | (torch.arange(n_places, device=tokens.device) == 0)
        found: Tensor = self.inner(
            input_ids=tokens, attention_mask=is_read[:, None, None, :].expand(n, 1, n_places, n_places)
        ).logits
        return found


def library() -> ModuleType:
    """Return `transformers`. Raises ConfigError without the package."""
    return extra(
        "transformers", ConfigError("transformers: expected for the models, found none: pip install transformers")
    )


def base() -> nn.Module:
    """Return the model of `transformers`, untrained. Raises ConfigError without the package."""
    transformers = library()
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=WIDTH,
        hidden_dim=2 * WIDTH,
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    return fix(transformers.DistilBertForSequenceClassification(config))


def whole() -> nn.Module:
    """Return the model of which everything is trained."""
    return TweetReader(base())


def adapted() -> nn.Module:
    """Return the model of which the adapters are trained."""
    return TweetReader(lora(base(), RANK, TARGETS))


@dataclass(frozen=True, slots=True)
class Method:
    """One training."""

    words: str
    model: str
    simulation: Mapping[str, Any]
    learning_rate: float
    """The adapters' is the best of 2, 8 and 40 in one training each, of 24 or 30 rounds. Central training takes the
    same. No search is on file for those of the whole model and of the LSTM."""


_HERE: Final = __name__
ADAPTERS, CENTRAL, WHOLE, LSTM = "adapters", "central-adapters", "whole", "lstm"
METHODS: Final = MappingProxyType(
    {
        ADAPTERS: Method("adapters, PRECAD", f"{_HERE}:adapted", {}, 8.0),
        CENTRAL: Method(
            "adapters, central DP-SGD",
            f"{_HERE}:adapted",
            {"algorithm": "central-record-dp", "client_clipping": False},
            8.0,
        ),
        WHOLE: Method("whole model, PRECAD", f"{_HERE}:whole", {}, 0.5),
        LSTM: Method("LSTM, PRECAD", "lstm-binary", {}, 2.0),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.Experiment):
    """Describe what is run."""

    rounds: int = ROUNDS
    sigma: float = 1.0
    methods: Sequence[str] = ()
    """Names of `METHODS`, of those that are trained; none: all."""
    peers_python: str | None = None
    """An interpreter that holds Opacus, which then trains the adapters centrally too."""

    def __post_init__(self) -> None:
        runner.require_known("--method", self.methods, METHODS)

    def case(self, name: str, start: PublicStart) -> Case:
        """Return one training from the public start."""
        method = METHODS[name]
        is_adapted = method.model == METHODS[ADAPTERS].model
        constants = {"base_model_sha256": start.base_sha256} if is_adapted else {}
        initial = {"initial_model": str(start.whole)} if name == WHOLE else {}
        return Case(
            name=name,
            labels={"method": method.words},
            config={
                "task": {
                    "name": name,
                    "clients": CLIENTS,
                    "rounds": self.rounds,
                    "client_rate": 1.0,
                    "record_rate": RECORD_RATE,
                    "record_clip": 1.0,
                    "client_clip": 40.0,
                    "noise_multiplier": self.sigma,
                    "learning_rate": method.learning_rate,
                    "delta": 1e-5,
                    "model": method.model,
                    **constants,
                },
                "client": {
                    "dataset": "sentiment140-50k",
                    "device": self.device,
                    **({"base_model": str(start.base)} if is_adapted else {}),
                },
                "simulation": {"evaluate_every": max(1, self.rounds // 6), **initial, **method.simulation},
            },
            rounds_per_epoch=1 / RECORD_RATE,
        )


@dataclass(frozen=True, slots=True)
class PublicStart:
    """Where private trainings begin."""

    base: Path
    base_sha256: str
    whole: Path
    """All parameters, flat."""
    accuracy: float
    """On Sentiment140's test half, before any private training."""


_NO_START: Final = PublicStart(Path("base.safetensors"), "0" * 64, Path("base.npy"), 0.0)


def public_start(folder: Path, *, epochs: int = PUBLIC_EPOCHS) -> PublicStart:
    """Return the base that a folder holds, or train it and write it there. Raises ConfigError, DataError."""
    model = networks.build(whole)
    path, flat = (folder / name for name in ("base.safetensors", "base.npy"))
    if not (path.is_file() and flat.is_file()):
        _train_publicly(model, epochs)
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        write_tensors(path, model.get_submodule("inner").state_dict(), {"format": "pt"})
        np.save(flat, networks.flatten(model))
    accuracy = evaluation.accuracy(np.load(flat), model, sentiment140_50k().test, device=torch.device("cpu"))
    return PublicStart(path.absolute(), hashlib.sha256(path.read_bytes()).hexdigest(), flat.absolute(), accuracy)


def _train_publicly(model: nn.Module, epochs: int) -> None:
    """Train on airline tweets that are not neutral, both classes at equal weight."""
    tweets = airline_tweets().train
    polar = tweets.take(np.flatnonzero(tweets.labels != 1))
    features, labels = torch.from_numpy(polar.features), torch.from_numpy((polar.labels == 2).astype(np.int64))
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=PUBLIC_RATE)
    weight = torch.bincount(labels).sum() / (2.0 * torch.bincount(labels))
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels), generator=generator), PUBLIC_BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features[batch]), labels[batch], weight=weight)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    library()  # a factory that raises is told by its kind alone
    names = [name for name in METHODS if name in (experiment.methods or METHODS)]
    if experiment.deployed:
        for name in names:
            deployment_of(experiment.case(name, _NO_START).config)  # what it refuses needs no public start
    start = public_start(folder)
    return runner.reported(
        "adapters",
        experiment,
        [experiment.case(name, start) for name in names],
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "public_accuracy": start.accuracy,
            "cases": [_of_case(outcome) for outcome in outcomes],
            **_by_opacus(experiment, start),
        },
        paragraph=paragraph,
        draw=lambda outcomes, _: runner.save_figure(
            lambda axes: _draw(axes[0], outcomes), folder / "adapters.png", panels=1
        ),
    )


def _by_opacus(experiment: Experiment, start: PublicStart) -> dict[str, Any]:
    """Return what Opacus' central training came to, where it is asked for. Raises ConfigError."""
    if experiment.peers_python is None:
        return {}
    seeds = range(experiment.first_seed, experiment.first_seed + experiment.seeds)
    runs = central_opacus.trained(experiment.case(CENTRAL, start).config, seeds, Path(experiment.peers_python))
    return {
        "opacus": {
            "accuracy": runner.spread([run["accuracy"] for run in runs]),
            "epsilon": max(run["epsilon"] for run in runs),
            "logits_apart": max(run["apart"] for run in runs),
        }
    }


def _of_case(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.case.labels,
        "dim": outcome.dim,
        "accuracy": outcome.over_seeds("accuracy"),
        "epsilon": runner.largest_epsilon(outcome),
        "ms_per_round": outcome.ms_per_round,
        "diverged": outcome.diverged,
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out."""
    found = [
        f"{case['method']} {case['accuracy']['mean']:.4f} (d = {case['dim']})"
        for case in report["cases"]
        if case["accuracy"]["mean"] is not None
    ]
    if (opacus := report.get("opacus")) is not None:
        found.append(f"adapters, central DP-SGD by Opacus {opacus['accuracy']['mean']:.4f}")
    return (
        f"Accuracy on Sentiment140 from a base trained on airline tweets ({report['public_accuracy']:.4f} by itself), "
        f"sigma = {report['sigma']:g}, {report['rounds']} rounds, {report['seeds']} seed(s), final models: "
        f"{'; '.join(found)}."
    )


def _draw(axes: Any, outcomes: Sequence[Outcome]) -> None:
    for colour, outcome in zip(runner.COLOURS, outcomes, strict=False):
        runner.draw_curves(axes, outcome.rows, "accuracy", colour=colour, label=outcome.case.labels["method"])
    axes.set(xlabel="epoch", ylabel="test accuracy", title="Sentiment140 at equal ε of a record")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    table = titled("Private adapters", "method", "d", "accuracy", "epsilon", "ms a round", words=("method",))
    for case in report["cases"]:
        mean, epsilon, ms = case["accuracy"]["mean"], case["epsilon"], case["ms_per_round"]
        table.add_row(
            case["method"],
            str(case["dim"]),
            "-" if mean is None else f"{mean:.4f}",
            "-" if epsilon is None else at_most(epsilon),
            "-" if ms is None else f"{ms:.0f}",
        )
    if (opacus := report.get("opacus")) is not None:
        epsilon = at_most(opacus["epsilon"])
        table.add_row("adapters, central DP-SGD by Opacus", "", f"{opacus['accuracy']['mean']:.4f}", epsilon, "-")
    runner.print_result(console, table, report)
